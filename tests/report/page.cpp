// Writes the page of a JSON document: nibble_report_page < measure.json > report.html

#include <iostream>
#include <iterator>
#include <string>

#include "cli/html_report.hpp"

int main() {
  const std::string json(std::istreambuf_iterator<char>(std::cin), {});
  std::cout << nibble::cli::html_report(json);
  return std::cout.flush() ? 0 : 1;
}
