# What the wheel has besides Python (pyproject.toml): nibble/bin/nibble, and in nibble/lib our libraries with every
# library that they need and that not every Linux has. Component `wheel`, which no other installation includes.
set(wheel_libraries nibble_c)
foreach(target nibble_cuda nibble_torch)
  if(TARGET ${target})
    list(APPEND wheel_libraries ${target})
  endif()
endforeach()
# DT_RPATH, unlike DT_RUNPATH, is also where libraries are looked for that a bundled library needs.
foreach(target ${wheel_libraries})
  set_property(TARGET ${target} PROPERTY INSTALL_RPATH "$ORIGIN")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
endforeach()
set_property(TARGET nibble APPEND PROPERTY INSTALL_RPATH "$ORIGIN/../lib")
target_link_options(nibble PRIVATE -Wl,--disable-new-dtags)

add_custom_target(nibble_wheel DEPENDS nibble ${wheel_libraries})
install(TARGETS nibble RUNTIME DESTINATION nibble/bin COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS ${wheel_libraries} LIBRARY DESTINATION nibble/lib COMPONENT wheel EXCLUDE_FROM_ALL)

set(files "")
foreach(target ${wheel_libraries})
  string(APPEND files " \"$<TARGET_FILE:${target}>\"")
endforeach()
string(CONFIGURE [[
  # manylinux wheels may rely on the C and C++ libraries; torch is there when libnibble_torch is loaded.
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES @files@ RESOLVED_DEPENDENCIES_VAR needed
       PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread|gcc_s|stdc[+][+])[.]so" "^lib(torch|c10)" "^libnibble")
  foreach(library IN LISTS needed)
    get_filename_component(name "${library}" NAME)
    file(REAL_PATH "${library}" file)  # wheels have no links
    message(STATUS "Bundling ${name}")
    file(COPY_FILE "${file}" "${CMAKE_INSTALL_PREFIX}/nibble/lib/${name}")
    # Its license, where Debian and Ubuntu have it.
    execute_process(COMMAND dpkg-query --search "${file}" OUTPUT_VARIABLE owner RESULT_VARIABLE result ERROR_QUIET)
    string(REGEX MATCH "^[^:]+" owner "${owner}")
    if(result EQUAL 0 AND EXISTS "/usr/share/doc/${owner}/copyright")
      file(INSTALL "/usr/share/doc/${owner}/copyright" DESTINATION "${CMAKE_INSTALL_PREFIX}/nibble/lib/licenses"
           RENAME "${name}.txt")
    endif()
  endforeach()
]] copy_needed @ONLY)
install(CODE "${copy_needed}" COMPONENT wheel EXCLUDE_FROM_ALL)
