#pragma once

#include <string>
#include <vector>

#include "nibble/error.hpp"

namespace nibble::test {

[[nodiscard]] inline std::vector<std::string> texts(const std::vector<Message>& messages) {
  std::vector<std::string> texts;
  for (const Message& message : messages) texts.push_back(message.text);
  return texts;
}

[[nodiscard]] inline std::vector<Remedy::Kind> remedies(const std::vector<Message>& messages) {
  std::vector<Remedy::Kind> kinds;
  for (const Message& message : messages) kinds.push_back(message.remedy.kind);
  return kinds;
}

/// That of the Error that `call` throws; none if it throws nothing.
template <class Call> [[nodiscard]] Remedy remedy_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.remedy();
  }
  return {};
}

}  // namespace nibble::test
