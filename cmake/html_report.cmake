# The page of `nibble measure --html` as `nibble::html_report_page`: cli/measurement/html_report/ and Chart.js put into
# one text. Its Content-Security-Policy names each script and the style by hash, so nothing that a file's names could
# smuggle in would run.

# The hash of a text as that policy spells it: base64, of which CMake knows nothing.
function(nibble_csp_hash text result)
  string(SHA256 hex "${text}")
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(base64 "")
  foreach(begin RANGE 0 60 6)  # three bytes are four characters; 32 bytes are ten times that, and two bytes more
    string(SUBSTRING "${hex}0000" ${begin} 6 bytes)
    foreach(shift 18 12 6 0)
      math(EXPR digit "(0x${bytes} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${digit} 1 character)
      string(APPEND base64 ${character})
    endforeach()
  endforeach()
  string(SUBSTRING ${base64} 0 43 base64)
  set(${result} "'sha256-${base64}='" PARENT_SCOPE)
endfunction()

function(nibble_read_for_page file result)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  if(text MATCHES "</[sS][cCtT]|<!--|\r")  # would end the element, or be another text once a browser has read it
    message(FATAL_ERROR "${file} cannot be embedded in a page: it has '</script', '</style', '<!--' or a CR")
  endif()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

function(nibble_write_html_report output)
  set(folder ${PROJECT_SOURCE_DIR}/cli/measurement/html_report)
  nibble_read_for_page(${NIBBLE_CHART_JS} chart_js)
  nibble_read_for_page(${folder}/style.css style)
  set(script "")
  # One script: what runs while it loads may use the parts before it.
  foreach(part figures state elements save charts spread tensor_charts heat_map blocks table tensor main)
    nibble_read_for_page(${folder}/${part}.js text)
    string(APPEND script "${text}")
  endforeach()
  nibble_csp_hash("${style}" style_hash)
  nibble_csp_hash("${chart_js}" chart_js_hash)
  nibble_csp_hash("${script}" script_hash)

  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/page.html)
  file(READ ${folder}/page.html page)
  foreach(part style_hash chart_js_hash script_hash style script chart_js)  # Chart.js last: it stays as it is
    string(REPLACE "@${part}@" "${${part}}" page "${page}")
  endforeach()
  set(written "")
  if(EXISTS ${output})
    file(READ ${output} written)
  endif()
  if(NOT page STREQUAL written)  # a new time would compile it again
    file(WRITE ${output} "${page}")
  endif()
endfunction()

function(nibble_embed_html_report target)
  set(page ${PROJECT_BINARY_DIR}/html_report.html)
  nibble_write_html_report(${page})
  nibble_embed(${target} ${page} html_report_page)
endfunction()
