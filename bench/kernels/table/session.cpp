#include "bench/kernels/table/session.hpp"

namespace nibble::bench {

std::vector<Contender> Session::right_ones(
    const std::string& name, const std::vector<Contender>& contenders, Buffer& out,
    const std::function<void(const Contender&, const std::string&)>& check_result) {
  std::vector<Contender> right;
  for (const Contender& contender : contenders) {
    const std::string its_name = name + "/" + contender.by;
    const bool is_right = report.attempt(its_name, [&] {
      out.poison();
      contender.run(0, nullptr);
      check_result(contender, its_name);
    });
    if (is_right) right.push_back(contender);
  }
  return right;
}

double gb_s(u64 bytes, const Times& times) { return static_cast<double>(bytes) / times.median * 1e-3; }

Json line_of(const std::string& name, const Times& times, u64 bytes) {
  Json line = line_of(name, times);
  line["bytes"] = bytes;
  line["gb_s"] = gb_s(bytes, times);
  return line;
}

void add_ratios(Json& line, const std::vector<Contender>& contenders, const std::vector<Times>& times,
                std::size_t own) {
  if (contenders[own].by != "nibble") return;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (i != own) line["faster_than"][contenders[i].by] = times[i].median / times[own].median;
}

}  // namespace nibble::bench
