// Libraries never print and never end the process: looked up in what their object files call.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::structure {
namespace {

/// Whether a library may not refer to this symbol (as the linker spells it).
bool IsForbidden(std::string_view symbol) {
  constexpr std::string_view kNames[] = {
      "abort",        "exit",          "_exit",   "_Exit",  "quick_exit", "printf",
      "vprintf",      "puts",          "putchar", "perror", "dprintf",    "vdprintf",
      "__printf_chk", "__vprintf_chk", "stdout",  "stderr", "system",     "_ZSt4cout",
      "_ZSt4cerr",    "_ZSt4clog",     "kill",    "raise"};
  if (std::find(std::begin(kNames), std::end(kNames), symbol) != std::end(kNames)) return true;
  // fmt::print in all its forms ends in one of these.
  return symbol.starts_with("_ZN3fmt") && symbol.find("6vprint") != std::string_view::npos;
}

/// The one exception: what MEGALITH_CHECK calls when this project is wrong.
bool MayPrintAndAbort(std::string_view member) { return member == "check.cc.o"; }

struct Reference {
  std::string member;  ///< object file inside the archive
  std::string symbol;
};

/// What nm prints with --print-file-name: "libx.a:y.cc.o:                 U name".
std::vector<Reference> ParseNm(std::string_view output) {
  std::vector<Reference> references;
  while (!output.empty()) {
    const std::size_t end = std::min(output.find('\n'), output.size());
    const std::string_view line = output.substr(0, end);
    output.remove_prefix(std::min(end + 1, output.size()));
    const std::size_t mark = line.rfind(" U ");
    const std::size_t colon = line.rfind(':', mark);
    if (mark == std::string_view::npos || colon == std::string_view::npos || colon == 0) continue;
    const std::size_t start = line.rfind(':', colon - 1);
    if (start == std::string_view::npos) continue;
    references.push_back({std::string(line.substr(start + 1, colon - start - 1)),
                          std::string(line.substr(mark + 3))});
  }
  return references;
}

std::vector<Reference> UndefinedSymbols(const std::string& archive) {
  const std::string command = fmt::format("'{}' --print-file-name '{}' 2>&1", MEGALITH_NM, archive);
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string output;
  std::array<char, 65536> block;
  for (std::size_t got = 0; (got = std::fread(block.data(), 1, block.size(), pipe)) > 0;) {
    output.append(block.data(), got);
  }
  // All symbols are asked for, because an archive of data alone has no undefined ones.
  EXPECT_NE(output.find(" T "), std::string::npos) << archive << ": nm shows nothing";
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << output.substr(0, 2000);
  return ParseNm(output);
}

TEST(Libraries, DoNotPrintExitOrAbort) {
  std::ifstream list(MEGALITH_ARCHIVE_LIST);
  int num_archives = 0;
  for (std::string archive; std::getline(list, archive);) {
    ++num_archives;
    const std::vector<Reference> references = UndefinedSymbols(archive);
    for (const auto& [member, symbol] : references) {
      EXPECT_FALSE(IsForbidden(symbol) && !MayPrintAndAbort(member))
          << archive << ": " << member << " refers to " << symbol
          << "; a library returns a Status or logs through the sink";
    }
  }
  EXPECT_GE(num_archives, 6) << "the list of archives is " << MEGALITH_ARCHIVE_LIST;
}

TEST(ParseNm, MembersAndSymbolsAreTakenApart) {
  const auto references = ParseNm(
      "/a b/lib:x/libbase.a:check.cc.o:                 U abort\n"
      "libbase.a:y.cc.o:                 U _ZSt4cout\n"
      "libbase.a:y.cc.o:0000000000000000 T main\n\nnm: z.o: no symbols\n");
  ASSERT_EQ(references.size(), 2U);
  EXPECT_EQ(references[0].member, "check.cc.o");
  EXPECT_EQ(references[0].symbol, "abort");
  EXPECT_TRUE(IsForbidden(references[0].symbol));
  EXPECT_TRUE(MayPrintAndAbort(references[0].member));
  EXPECT_TRUE(IsForbidden(references[1].symbol));
  EXPECT_FALSE(MayPrintAndAbort(references[1].member));
}

TEST(IsForbidden, PrintingIsAndFormattingIsNot) {
  EXPECT_TRUE(IsForbidden("_ZN3fmt2v96vprintEP8_IO_FILENS0_17basic_string_viewIcEE"));
  EXPECT_TRUE(IsForbidden("stderr"));
  EXPECT_FALSE(IsForbidden("_ZN3fmt2v97vformatB5cxx11ENS0_17basic_string_viewIcEE"));
  EXPECT_FALSE(IsForbidden("snprintf"));
  EXPECT_FALSE(IsForbidden("fwrite"));
  EXPECT_FALSE(IsForbidden("exit_code"));
}

}  // namespace
}  // namespace megalith::structure
