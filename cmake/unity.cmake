# Most of the time of a build goes into the headers of libraries, and into what CLI11 and nlohmann-json make of them in
# each source. So sources are compiled a dozen or two at a time: libnibble takes 55 s of processor time instead of 140, the
# command line 25 instead of 80. Names in anonymous namespaces have to differ within a target.
option(NIBBLE_UNITY "Compile many sources at a time: quicker from nothing, slower after a change" ON)

function(nibble_unity target)
  if(NOT NIBBLE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    # Highway includes a source once for each CPU target. In device.cpp, g++ warns of a member in an anonymous namespace.
    file(STRINGS ${source} alone REGEX "^#define HWY_TARGET_INCLUDE" LIMIT_COUNT 1)
    if(alone OR source MATCHES "/quant/quantizers/device[.]cpp$")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()
