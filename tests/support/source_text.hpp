#ifndef IDEM_TESTS_SUPPORT_SOURCE_TEXT_HPP
#define IDEM_TESTS_SUPPORT_SOURCE_TEXT_HPP

#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace idem_test {

struct SourceFile {
    std::string name{};  // relative to the root of the project
    std::vector<std::string> lines{};
};

inline void read_tree(const std::filesystem::path& root, const std::filesystem::path& top,
                      std::vector<SourceFile>& found) {
    namespace fs = std::filesystem;
    if (fs::is_directory(top)) {
        for (const auto& entry : fs::directory_iterator(top)) read_tree(root, entry.path(), found);
    } else if (fs::is_regular_file(top)) {
        std::vector<std::string> lines;
        std::ifstream in(top);
        for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
        found.push_back({fs::relative(top, root).generic_string(), std::move(lines)});
    }
}

/// The text without comments, and with every literal emptied: what is left are the code's own
/// braces and parentheses, on their own lines.
inline std::string code_of(const SourceFile& file) {
    std::string all;
    for (const auto& line : file.lines) all += line.starts_with('#') ? "\n" : line + '\n';
    std::string code;
    const auto newlines = [&](std::size_t from, std::size_t to) {
        for (std::size_t i = from; i < to && i < all.size(); ++i)
            if (all[i] == '\n') code += '\n';
    };
    for (std::size_t at = 0; at < all.size();) {
        std::size_t end = at + 1;
        if (all.compare(at, 2, "//") == 0) {
            end = all.find('\n', at);
        } else if (all.compare(at, 2, "/*") == 0) {
            end = all.find("*/", at + 2) + 2;
            newlines(at, end);
        } else if (all.compare(at, 2, "R\"") == 0) {
            const auto open = all.find('(', at);
            const auto close = ")" + all.substr(at + 2, open - at - 2) + "\"";
            end = all.find(close, open) + close.size();
            code += '0';
            newlines(at, end);
        } else if (all[at] == '"' || (all[at] == '\'' && (at == 0 || !std::isalnum(all[at - 1])))) {
            while (end < all.size() && all[end] != all[at]) end += all[end] == '\\' ? 2 : 1;
            ++end;
            code += '0';
        } else {
            code += all[at];
        }
        at = end;
    }
    return code;
}

/// `template <class T>` and what else may stand in its brackets says nothing about what follows.
inline std::string without_template_head(std::string statement) {
    const auto head = statement.find("template");
    if (head == std::string::npos) return statement;
    int depth = 0;
    for (auto at = head; at < statement.size(); ++at) {
        depth += statement[at] == '<' ? 1 : 0;
        depth -= statement[at] == '>' ? 1 : 0;
        if (statement[at] == '>' && depth == 0) return statement.erase(head, at - head + 1);
    }
    return statement;
}

struct Function {
    std::size_t first_line = 0;
    std::size_t lines = 0;
};

/// The functions of a header, from their opening to their closing brace. A reader of braces, not a
/// parser: it may miss one, and takes nothing for a function that is none.
inline std::vector<Function> functions_of(const SourceFile& file) {
    static std::regex const opens_a_scope("\\b(namespace|class|struct|union|enum|extern)\\b");
    const auto opens_scope = [](const std::string& text) {
        return std::regex_search(without_template_head(text), opens_a_scope);
    };
    struct Block {
        std::string before{};
        std::size_t line = 0;
        bool function = false;
    };
    std::vector<Function> found;
    std::vector<Block> open;
    std::string statement;  // what has been read since the last ; { or }
    std::size_t line = 1;
    std::size_t inside = 0;  // how many open blocks are functions or lie in one
    const auto code = code_of(file);
    for (std::size_t at = 0; at < code.size(); ++at) {
        const char c = code[at];
        if (c == '\n') ++line;
        if (c == '{') {
            const bool function =
                inside > 0 || (statement.find('(') != std::string::npos && !opens_scope(statement));
            inside += function ? 1 : 0;
            open.push_back({statement, line, function});
            statement.clear();
        } else if (c == '}' && !open.empty()) {
            const Block block = open.back();
            open.pop_back();
            inside -= block.function ? 1 : 0;
            if (block.function && inside == 0) found.push_back({block.line, line - block.line + 1});
            // An initialiser in braces is a part of the statement it stands in.
            const auto next = code.find_first_not_of(" \n", at + 1);
            const bool goes_on = next != std::string::npos &&
                                 std::string(",{)(.").find(code[next]) != std::string::npos;
            statement = goes_on ? block.before : std::string();
        } else if (c == ';') {
            statement.clear();
        } else {
            statement += c;
        }
    }
    return found;
}

}  // namespace idem_test

#endif
