// Publishing an article so that article row, idempotency record and URL are in PostgreSQL together
// or not at all: publish_article CONNINFO. Publishes as impatient clients would, then counts.

#include <array>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <idem/http.hpp>
#include <idem/postgres.hpp>

namespace {

struct Article {
    std::string title{};
    std::string body{};
};

using Connection = std::unique_ptr<PGconn, decltype(&PQfinish)>;
using Result = std::unique_ptr<PGresult, decltype(&PQclear)>;

Connection connect(const std::string& conninfo) {
    Connection connection(PQconnectdb(conninfo.c_str()), PQfinish);
    if (PQstatus(connection.get()) != CONNECTION_OK)
        throw std::runtime_error(PQerrorMessage(connection.get()));
    return connection;
}

/// The first field of the first row.
template <class... Texts>
std::string query(PGconn* connection, const char* sql, const Texts&... texts) {
    const std::array<const char*, sizeof...(texts) + 1> values{texts.c_str()..., nullptr};
    const Result result(PQexecParams(connection, sql, sizeof...(texts), nullptr, values.data(),
                                     nullptr, nullptr, 0),
                        PQclear);
    const auto status = PQresultStatus(result.get());
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)
        throw std::runtime_error(PQerrorMessage(connection));
    return PQntuples(result.get()) > 0 ? PQgetvalue(result.get(), 0, 0) : std::string();
}

void make_tables(const std::string& conninfo) {
    idem::PostgresStore({.conninfo = conninfo}).create_schema();
    const Connection connection = connect(conninfo);
    (void)query(connection.get(),
                "CREATE TABLE IF NOT EXISTS article ("
                "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title text, body text)");
    (void)query(connection.get(),
                "CREATE TABLE IF NOT EXISTS content ("
                "digest text PRIMARY KEY, first_url text NOT NULL, copies int NOT NULL)");
}

/// POST /articles. The key is the client's; whoever sends it again gets the first answer. The same
/// content under another key is another article, and counted.
idem::http::Response publish(PGconn* connection, const std::string& key, const Article& article) {
    const auto request = idem::Fingerprint::of(article.title, article.body);
    const auto outcome = idem::transact(
        connection, {.scope = "article.publish", .id = key}, request,
        {.wait = std::chrono::seconds{20}}, [&](idem::Transaction& transaction) {
            const std::string id =
                query(connection, "INSERT INTO article (title, body) VALUES ($1, $2) RETURNING id",
                      article.title, article.body);
            const std::string url = "/articles/" + id;
            (void)query(connection,
                        "INSERT INTO content VALUES (md5($1), $2, 1) ON CONFLICT (digest) "
                        "DO UPDATE SET copies = content.copies + 1",
                        article.body, url);
            transaction.resource(url);
            return idem::http::Response{201, {{"Location", url}}, "published\n"};
        });
    return idem::http::respond(outcome);
}

std::string location_of(const idem::http::Response& response) {
    for (const auto& header : response.headers)
        if (header.name == "Location") return header.value;
    return {};
}

bool all_well = true;
void check(const std::string& what, bool holds) {
    std::cout << (holds ? "  ok: " : "  FAILED: ") << what << std::endl;
    all_well = all_well && holds;
}

void run(const std::string& conninfo) {
    make_tables(conninfo);
    const Connection connection = connect(conninfo);
    const auto count = [&](const char* sql) { return query(connection.get(), sql); };
    const std::string before = count("SELECT count(*) FROM article");
    const std::string run = count("SELECT gen_random_uuid()");
    const Article article{"On repeating oneself", "Once is enough. " + run};

    std::vector<idem::http::Response> answers(8);
    {
        std::vector<std::jthread> clients;
        for (auto& answer : answers) {
            clients.emplace_back([&] {
                try {
                    answer = publish(connect(conninfo).get(), run + ".1", article);
                } catch (const std::exception& e) {
                    std::cerr << std::string("client: ") + e.what() + '\n';
                }
            });
        }
    }
    for (int i = 0; i < 3; ++i) answers.push_back(publish(connection.get(), run + ".1", article));
    const std::string url = location_of(answers[0]);
    bool same = !url.empty();
    for (const auto& answer : answers)
        same = same && answer.status == 201 && location_of(answer) == url;
    check("eleven requests, eight of them at once, have one Location: " + url, same);
    check("one row was written",
          count("SELECT count(*) FROM article") == std::to_string(std::stol(before) + 1));

    const auto other = publish(connection.get(), run + ".1", {"On repeating", "something else"});
    check("the same key with another article is refused: " + std::to_string(other.status),
          other.status == 422);

    // One request of the caller's own: the article and what else it writes stand or fall together.
    (void)query(connection.get(), "BEGIN");
    (void)publish(connection.get(), run + ".2", article);
    (void)query(connection.get(), "ROLLBACK");
    check("a rollback takes article, count and record along",
          query(connection.get(), "SELECT copies FROM content WHERE digest = md5($1)",
                article.body) == "1");
    const auto again = publish(connection.get(), run + ".2", article);
    check("then the key is free, and the article another: " + location_of(again),
          again.status == 201 && location_of(again) != url);
    check("the same content under another key was counted, once",
          query(connection.get(), "SELECT copies FROM content WHERE digest = md5($1)",
                article.body) == "2");
}

}  // namespace

int main(int count, char** arguments) try {
    if (count != 2) throw std::invalid_argument("usage: publish_article CONNINFO");
    run(arguments[1]);
    return all_well ? 0 : 1;
} catch (const std::exception& e) {
    std::cerr << "publish_article: " << e.what() << '\n';
    return 2;
}
