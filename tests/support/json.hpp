#ifndef IDEM_TESTS_SUPPORT_JSON_HPP
#define IDEM_TESTS_SUPPORT_JSON_HPP

// A strict reader of JSON objects (RFC 8259), so that what the library writes is read by code that
// was not written along with it.

#include <cctype>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace idem_test {

// Member names to values: texts unescaped, numbers and literals as they stand, members of an inner
// object under "outer.inner". Throws for what is not JSON and for a repeated name.
class JsonReader {
public:
    static std::map<std::string, std::string> read(std::string_view text) {
        JsonReader reader(text);
        reader.object("");
        if (!reader.in_.empty()) throw std::runtime_error("bytes after the object");
        return reader.found_;
    }

private:
    explicit JsonReader(std::string_view text) : in_(text) {}

    char next() {
        if (in_.empty()) throw std::runtime_error("the end came early");
        const char c = in_.front();
        in_.remove_prefix(1);
        return c;
    }
    void expect(char wanted) {
        if (next() != wanted) throw std::runtime_error(std::string("no '") + wanted + "' there");
    }
    void object(const std::string& prefix) {
        expect('{');
        if (in_.starts_with('}')) return expect('}');
        for (;;) {
            const std::string name = prefix + string();
            expect(':');
            if (in_.starts_with('{'))
                object(name + ".");
            else if (!found_.emplace(name, in_.starts_with('"') ? string() : scalar()).second)
                throw std::runtime_error("twice: " + name);
            const char c = next();
            if (c == '}') return;
            if (c != ',') throw std::runtime_error("neither ',' nor '}'");
        }
    }
    std::string scalar() {
        const auto end = in_.find_first_of(",}");
        const std::string out(in_.substr(0, end));
        in_.remove_prefix(out.size());
        const bool number = !out.empty() && out.find_first_not_of("-0123456789") == out.npos;
        if (!number && out != "true" && out != "false") throw std::runtime_error("odd: " + out);
        return out;
    }
    std::string string() {
        expect('"');
        std::string out;
        for (char c = next(); c != '"'; c = next()) {
            if (static_cast<unsigned char>(c) < 0x20U) throw std::runtime_error("bare control");
            out += c == '\\' ? escape() : c;
        }
        return out;
    }
    char escape() {
        const char c = next();
        if (c == '"' || c == '\\') return c;
        if (c != 'u') throw std::runtime_error("an escape the library does not use");
        std::string digits;
        for (int i = 0; i < 4; ++i) digits += next();
        const unsigned long code = std::stoul(digits, nullptr, 16);
        if (code > 0x7FU) throw std::runtime_error("an escape that was not needed");
        return static_cast<char>(code);
    }

    std::string_view in_;
    std::map<std::string, std::string> found_{};
};

}  // namespace idem_test

#endif
