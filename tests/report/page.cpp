// Writes the page of a JSON document: nibble_report_page [MADE] < measure.json > report.html

#include <iostream>
#include <iterator>
#include <string>

#include "cli/measurement/html_report.hpp"

int main(int count, char** arguments) {
  const std::string json(std::istreambuf_iterator<char>(std::cin), {});
  std::cout << nibble::cli::html_report(json, count > 1 ? arguments[1] : "{}");
  return std::cout.flush() ? 0 : 1;
}
