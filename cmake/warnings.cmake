# Warnings are errors where we build; a user who builds with another compiler is not stopped by them.
option(NIBBLE_WERROR "Treat warnings as errors" ON)

function(nibble_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -Wshadow>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 sees overlapping copies in every `"literal" + std::string` (its bug 105651).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(NIBBLE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()

set(nibble_sanitizers -fsanitize=${NIBBLE_SANITIZE} -fno-sanitize=${NIBBLE_NO_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)

# An empty optional that is read, or an index beyond a span, ends the program in every build.
function(nibble_assertions target)
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
endfunction()

# What the hardening guides of distributions ask of a program that reads files from strangers. The sanitizers instrument
# the same targets. They leave out the tests, which would then take longer to compile than everything else.
function(nibble_hardening target)
  nibble_assertions(${target})
  if(NIBBLE_SANITIZE)
    target_compile_options(${target} PRIVATE ${nibble_sanitizers})
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT NIBBLE_SANITIZE)
    target_compile_options(${target} PRIVATE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong
                                             -fstack-clash-protection)
    target_link_options(${target} PRIVATE -Wl,-z,relro,-z,now,-z,noexecstack)
  endif()
endfunction()
