#ifndef IDEMCTL_OUTPUT_HPP
#define IDEMCTL_OUTPUT_HPP

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <idem/detail/json.hpp>

#include "arguments.hpp"

namespace idemctl {

using idem::detail::JsonObject;

/// In the order in which one of them counts more than another.
enum Status : int {
    ok = 0,
    nothing = 1,
    usage = 2,
    unavailable = 3,
    damaged = 4,
    changed = 5,
};

inline void print(const std::string& line) {
    std::cout << line << '\n';
}
inline void print(JsonObject object) {
    print(std::move(object).finish());
}

/// Rows under a headline, each column as wide as its widest cell among the first thousand rows:
/// a table of millions is written as it comes.
class Table {
public:
    /// @param right the columns that hold numbers.
    Table(std::vector<std::string> head, std::vector<std::size_t> right)
        : right_(std::move(right)), rows_{std::move(head)} {}
    Table(const Table&) = delete;
    Table& operator=(const Table&) = delete;

    void add(std::vector<std::string> row) {
        rows_.push_back(std::move(row));
        if (rows_.size() >= 1000 || !widths_.empty()) flush();
    }
    void flush() {
        if (widths_.empty()) {
            widths_.resize(rows_[0].size());
            for (const auto& row : rows_)
                for (std::size_t i = 0; i < row.size(); ++i)
                    widths_[i] = std::max(widths_[i], width(row[i]));
        }
        for (const auto& row : rows_) print(line(row));
        rows_.clear();
    }

private:
    [[nodiscard]] std::string line(const std::vector<std::string>& row) const {
        std::string out;
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::size_t cell = width(row[i]);
            const std::string room(widths_[i] > cell ? widths_[i] - cell : 0, ' ');
            const bool right = std::find(right_.begin(), right_.end(), i) != right_.end();
            out += (i == 0 ? "" : "  ") + (right ? room + row[i] : row[i] + room);
        }
        return out.substr(0, out.find_last_not_of(' ') + 1);
    }

    std::vector<std::size_t> right_;
    std::vector<std::vector<std::string>> rows_;
    std::vector<std::size_t> widths_{};
};

/// Whether to go on. Where nobody can be asked only --yes says so. @throws WrongUsage.
[[nodiscard]] inline bool confirm(const Arguments& a, const std::string& what) {
    if (a.yes) return true;
    if (::isatty(STDIN_FILENO) == 0)
        throw WrongUsage("would " + what + "; there is no terminal to ask at: say --yes");
    std::cerr << what << "? [y/N] " << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    if (answer == "y" || answer == "Y" || answer == "yes") return true;
    std::cerr << "nothing was done\n";
    return false;
}

}  // namespace idemctl

#endif
