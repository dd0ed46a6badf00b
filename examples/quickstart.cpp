// g++ -std=c++20 -Iinclude examples/quickstart.cpp -lcrypto -pthread && ./a.out
#include <iostream>
#include <thread>
#include <vector>

#include <idem/idem.hpp>

int main() {
    idem::MemoryStore store;  // or RedisStore, PostgresStore, open_store(url): nothing else changes
    idem::IdempotencyGuard guard(store);
    int executions = 0;

    const auto submit = [&](const std::string& body) {
        const auto outcome = guard.run(
            {.scope = "transcode.submit", .id = "key-from-the-client", .tenant = "alice"},
            idem::Fingerprint::of_bytes(body), [&] {  // at most once at a time, once if it returns
                std::this_thread::sleep_for(std::chrono::milliseconds{50});
                return "job-" + std::to_string(++executions);
            });
        using Kind = idem::OutcomeKind;
        switch (outcome.kind()) {
            case Kind::executed: return "executed: " + outcome.value();
            case Kind::replayed: return "replayed: " + outcome.value();  // the first answer again
            case Kind::in_progress: return std::string("in progress: somebody is at it");
            case Kind::mismatch: return std::string("mismatch: the key stands for another request");
            default: return std::string(to_string(outcome.kind()));
        }
    };

    std::vector<std::jthread> clients;  // a click, and three impatient ones
    for (int i = 0; i < 4; ++i)
        clients.emplace_back([&] { std::cout << submit("clip.mp4 to 480p") + '\n'; });
    clients.clear();
    std::cout << submit("clip.mp4 to 480p") << '\n' << submit("clip.mp4 to 4K") << '\n';
    std::cout << "six calls, executions: " << executions << '\n';
}
