#ifndef IDEM_TESTS_SUPPORT_README_HPP
#define IDEM_TESTS_SUPPORT_README_HPP

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace idem_test {

/// The lines of the README that begin so, those that end in a backslash with what follows: what it
/// tells people to type is what is tested.
[[nodiscard]] inline std::vector<std::string> readme_lines(std::string_view begin) {
    std::ifstream in(std::string(IDEM_SOURCE_DIR) + "/README.md");
    std::vector<std::string> found;
    for (std::string line; std::getline(in, line);) {
        if (!line.starts_with(begin)) continue;
        std::string more;
        while (line.ends_with('\\') && std::getline(in, more)) {
            line.pop_back();
            line += more;
        }
        found.push_back(line);
    }
    return found;
}

[[nodiscard]] inline std::vector<std::string> words_of(const std::string& line) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

}  // namespace idem_test

#endif
