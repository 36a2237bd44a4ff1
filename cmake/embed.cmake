# Compiles a file into a target as `extern const std::string_view nibble::<symbol>`. The assembler copies it, which
# takes no time however large it is; a string literal of that size would take the compiler seconds.
function(nibble_embed target file symbol)
  set(source ${PROJECT_BINARY_DIR}/${symbol}.cpp)
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE path)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT [[
#include <string_view>

asm(".section .rodata\n"
    "@symbol@_begin:\n"
    ".incbin \"@path@\"\n"
    "@symbol@_end:\n"
    ".byte 0\n"
    ".previous\n");

extern "C" const char begin_of_@symbol@[] asm("@symbol@_begin");
extern "C" const char end_of_@symbol@[] asm("@symbol@_end");

namespace nibble {
extern const std::string_view @symbol@;
const std::string_view @symbol@(begin_of_@symbol@, static_cast<std::size_t>(end_of_@symbol@ - begin_of_@symbol@));
}
]])
  set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${path})
  set_property(SOURCE ${source} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${source})
endfunction()
