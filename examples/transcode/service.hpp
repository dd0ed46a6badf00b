#ifndef TRANSCODE_SERVICE_HPP
#define TRANSCODE_SERVICE_HPP

#include <charconv>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <httplib.h>

#include <idem/any_store.hpp>
#include <idem/guard.hpp>
#include <idem/http.hpp>
#include <idem/token.hpp>

#include "counters.hpp"
#include "files.hpp"
#include "workers.hpp"

namespace transcode {

using idem::http::Response;

/// A request that is wrong in form; the text is the client's to read.
class BadRequest : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The handlers. Each takes a request and returns the answer; what the store is they do not know.
/// Any thread may call any of them.
class Service {
public:
    Service(const idem::AnyStore& store, const Files& files, Workers& workers, idem::Duration lease)
        : files_(files),
          workers_(workers),
          tokens_(store, "upload.create", {.guard = options(lease)}),
          requests_(store, options(lease)),
          callbacks_(store, options(lease)) {}

    /// POST /tokens: a client asks for one before it does anything that must not happen twice.
    [[nodiscard]] Response issue_token(const httplib::Request& request) {
        return json(201, {{"token", tokens_.issue(caller_of(request))}});
    }

    /// POST /uploads, `Upload-Token: <token>`: makes an upload. The token is good for one; sent
    /// again it names the same upload, whose id was drawn when it was first used.
    [[nodiscard]] Response create_upload(const httplib::Request& request) {
        const std::string caller = caller_of(request);
        const auto outcome = tokens_.redeem(
            request.get_header_value("Upload-Token"), caller, fingerprint_of(request),
            {.wait = patience}, [&](idem::Execution& execution) {
                execution.resource(random_id());
                fs::create_directories(files_.upload(caller, execution.resource()));
                return json(201, {{"upload", execution.resource()}});
            });
        idem::http::RespondOptions options = answers();
        options.resource_url = [](std::string_view id) { return "/uploads/" + std::string(id); };
        return idem::http::respond(outcome, options);
    }

    /// PUT /uploads/<upload>/parts/<number>: needs no guard, for it is idempotent by itself: a
    /// repeat writes the same bytes to the same path, and readers see whole parts only.
    [[nodiscard]] Response put_part(const httplib::Request& request,
                                    const httplib::ContentReader& body) {
        const std::string caller = caller_of(request);
        const std::string upload = request.matches[1];
        if (!fs::exists(files_.upload(caller, upload)))
            return idem::http::problem(404, {}, "There is no such upload", upload);
        TemporaryFile temporary(files_.temporary(upload + '.' + random_id()));
        FingerprintingWriter writer(temporary.path());
        const bool complete = body([&](const char* data, std::size_t size) {
            writer.write({data, size});
            return true;
        });
        if (!complete) return idem::http::problem(400, {}, "The part did not arrive whole", {});
        const std::string sha256 = writer.finish();
        temporary.publish(files_.part(caller, upload, number(request.matches[2].str())));
        counters_->count("upload.part", "stored");
        return json(200, {{"sha256", sha256}, {"bytes", std::to_string(writer.bytes())}});
    }

    /// POST /uploads/<upload>/merge, `parts=<count>&sha256=<of the whole>`: joins the parts. Its
    /// key is made of the upload and the digest, so clients need not send one.
    [[nodiscard]] Response merge(const httplib::Request& request) {
        const std::string caller = caller_of(request);
        const std::string upload = request.matches[1];
        const std::string sha256 = digest(request, "sha256");
        const unsigned parts = number(request.get_param_value("parts"));
        idem::Key key = idem::content_key("upload.merge", upload, sha256);
        key.tenant = caller;
        const auto outcome =
            requests_.run(key, idem::Fingerprint::of(upload, sha256, parts), {.wait = patience},
                          [&] { return join_parts(caller, upload, parts, sha256); });
        return idem::http::respond(outcome, answers());
    }

    /// POST /jobs, `Idempotency-Key: "<key>"`: accepts a job. The claim made here goes to a worker;
    /// whoever sends the request again is told where it stands, and at last the one answer.
    [[nodiscard]] Response submit(const httplib::Request& request) {
        const auto header = idem::http::parse_key(header_value(request, "Idempotency-Key"));
        if (header.refused()) return header.problem;
        Job job = parse_job(request);
        const idem::Key key = job_key(job.caller, header.text);
        job.id = key.id;
        auto claimed = requests_.claim<Response>(key, fingerprint_of(request));
        if (auto* outcome = std::get_if<idem::Outcome<Response>>(&claimed))
            return idem::http::respond(*outcome, answers(job.id));
        auto& claim = std::get<idem::Claim<Response>>(claimed);
        const idem::Outcome<Response> accepted(
            {.kind = idem::OutcomeKind::in_progress, .attempt = claim.attempt()});
        workers_.accept({std::move(job), std::move(claim)});
        return idem::http::respond(accepted, answers(key.id));
    }

    /// GET /jobs/<job>: where the job stands.
    [[nodiscard]] Response status(const httplib::Request& request) {
        const std::string id = request.matches[1];
        return idem::http::status_document(requests_.find(stored_key(request)), answers(id));
    }

    /// GET /jobs/<job>/output: the path of the encoded file, which may not be there.
    [[nodiscard]] fs::path output(const httplib::Request& request) const {
        return files_.output(caller_of(request), request.matches[1]);
    }

    /// DELETE /jobs/<job>: the key is forgotten. A worker that is at it, in this process or another
    /// one, is told at its next renewal that it lost its claim, and stops its ffmpeg.
    [[nodiscard]] Response cancel(const httplib::Request& request) {
        if (requests_.forget(stored_key(request))) return {.status = 204};
        return idem::http::problem(404, {}, "There is no such job", {});
    }

    /// POST /callbacks/transcode, `Message-Id: <id>`: a worker has finished. The message comes at
    /// least once; its id makes that once. The ticket in it is the right to finish the job.
    [[nodiscard]] Response callback(const httplib::Request& request) {
        const auto ticket = idem::Ticket::parse(request.get_param_value("ticket"));
        const idem::Key message{.scope = "transcode.callback",
                                .id = request.get_header_value("Message-Id")};
        const auto outcome =
            callbacks_.run(message, fingerprint_of(request), {.wait = patience}, [&] {
                return finish_job(ticket, digest(request, "sha256"),
                                  number<std::uint64_t>(request.get_param_value("bytes")));
            });
        return idem::http::respond(outcome, answers());
    }

    /// GET /healthz: 503 with the reasons where something is wrong.
    [[nodiscard]] Response health() {
        const idem::Health health = requests_.health();
        std::string text;
        for (const std::string& problem : health.problems) text += problem + '\n';
        if (text.empty()) text = "ok\n";
        return {health.ok() ? 200 : 503, {{"Content-Type", "text/plain"}}, text};
    }

    /// GET /metrics
    [[nodiscard]] Response metrics() const {
        return {200, {{"Content-Type", "text/plain; version=0.0.4"}}, counters_->text()};
    }

    /// The first half of an orderly end: no new work, and what runs may finish. Callbacks are
    /// still taken: they are how it finishes.
    [[nodiscard]] bool drain_requests(idem::Duration deadline) {
        const bool tokens = tokens_.guard().drain(deadline).complete;
        return requests_.drain(deadline).complete && tokens;
    }
    /// The second half, once no worker has anything to report.
    [[nodiscard]] bool drain_callbacks(idem::Duration deadline) {
        return callbacks_.drain(deadline).complete;
    }

private:
    using Guard = idem::IdempotencyGuard<idem::AnyStore>;

    /// How long a repeat waits for the first answer before it is told "in progress".
    static constexpr idem::Duration patience = std::chrono::seconds{5};

    /// The observer owns its share of the counters: the heartbeat may outlive this object.
    [[nodiscard]] idem::GuardOptions options(idem::Duration lease) const {
        return {.lease = lease,
                .events = [counters = counters_](const idem::Event& e) { counters->count(e); }};
    }

    [[nodiscard]] static idem::http::RespondOptions answers(const std::string& job = {}) {
        idem::http::RespondOptions options;
        options.profile = idem::http::Profile::async_job;
        options.retry_after_max = std::chrono::seconds{1};
        options.resource_url = [](std::string_view id) {
            return "/jobs/" + std::string(id) + "/output";
        };
        if (!job.empty()) options.status_url = "/jobs/" + job;
        return options;
    }

    // --- requests -------------------------------------------------------------------------------

    /// Who calls. Stands for your authentication: whoever chooses it freely reads others' answers.
    [[nodiscard]] static std::string caller_of(const httplib::Request& request) {
        std::string caller = request.get_header_value("X-Caller");
        if (caller.empty()) return "demo";
        if (caller.size() > 32 || caller.find_first_not_of(lower_and_digits) != std::string::npos)
            throw BadRequest("X-Caller must be up to 32 of a-z and 0-9");
        return caller;
    }
    [[nodiscard]] static idem::Fingerprint fingerprint_of(const httplib::Request& request) {
        return idem::http::request_fingerprint(
            request.method, request.target, request.get_header_value("Content-Type"), request.body);
    }
    [[nodiscard]] static std::optional<std::string_view> header_value(
        const httplib::Request& request, const char* name) {
        const auto found = request.headers.find(name);
        if (found == request.headers.end()) return std::nullopt;
        return found->second;
    }
    template <class Number = unsigned>
    [[nodiscard]] static Number number(const std::string& text) {
        Number value = 0;
        const auto* end = text.data() + text.size();
        const auto [at, error] = std::from_chars(text.data(), end, value);
        if (error != std::errc{} || at != end) throw BadRequest("not a number: " + text);
        return value;
    }
    [[nodiscard]] static std::string digest(const httplib::Request& request, const char* name) {
        std::string text = request.get_param_value(name);
        if (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
            throw BadRequest(std::string(name) + " must be 64 hex digits");
        return text;
    }
    /// Refuses what is wrong in form before anything is claimed: a bad request burns no key.
    [[nodiscard]] static Job parse_job(const httplib::Request& request) {
        Job job{.caller = caller_of(request),
                .input = digest(request, "input"),
                .width = number(request.get_param_value("width")),
                .height = number(request.get_param_value("height")),
                .preset = request.get_param_value("preset")};
        for (const unsigned side : {job.width, job.height})
            if (side < 16 || side > 7680 || side % 2 != 0)
                throw BadRequest("width and height: even numbers between 16 and 7680");
        if (job.preset.empty()) job.preset = "medium";
        if (job.preset.find_first_not_of(lower_and_digits) != std::string::npos)
            throw BadRequest("preset: letters only");
        return job;
    }
    /// The id of a job stands in URLs and file names, so it is a digest of what the client sent.
    [[nodiscard]] static idem::Key job_key(const std::string& caller, const std::string& text) {
        idem::Key key = idem::content_key("transcode.submit", text);
        key.tenant = caller;
        return key;
    }
    [[nodiscard]] static idem::Key stored_key(const httplib::Request& request) {
        return {
            .scope = "transcode.submit", .id = request.matches[1], .tenant = caller_of(request)};
    }

    // --- work -----------------------------------------------------------------------------------

    /// Both refusals are 409, which is retryable: the claim is rolled back, and the same request
    /// works once the parts are right.
    [[nodiscard]] Response join_parts(const std::string& caller, const std::string& upload,
                                      unsigned parts, const std::string& sha256) const {
        TemporaryFile whole(files_.temporary(upload + '.' + random_id()));
        {
            std::ofstream out(whole.path(), std::ios::binary);
            for (unsigned part = 1; part <= parts; ++part) {
                std::ifstream in(files_.part(caller, upload, part), std::ios::binary);
                if (!in)
                    return idem::http::problem(409, {}, "A part is missing", std::to_string(part));
                if (in.peek() != std::ifstream::traits_type::eof()) out << in.rdbuf();
            }
            out.close();
            if (!out) throw std::runtime_error("cannot write " + whole.path().string());
        }
        // Of the file as it is on disk, not of what was meant to be written.
        if (hex(idem::Fingerprint::of_file(whole.path()).digest()) != sha256)
            return idem::http::problem(409, {}, "The parts do not make up this file", sha256);
        const auto bytes = fs::file_size(whole.path());
        whole.publish(files_.input(caller, sha256));
        return json(201, {{"input", sha256}, {"bytes", std::to_string(bytes)}});
    }

    /// The job's one answer. What is returned here answers the message, not the job.
    [[nodiscard]] Response finish_job(const idem::Ticket& ticket, const std::string& sha256,
                                      std::uint64_t bytes) {
        const std::string& id = ticket.key().id;
        const Response done = json(201, {{"job", id},
                                         {"output", "/jobs/" + id + "/output"},
                                         {"bytes", std::to_string(bytes)},
                                         {"sha256", sha256}});
        try {
            const auto outcome = requests_.resume<Response>(ticket).complete(done);
            if (!outcome.recorded()) return {.status = 503};  // retryable: send it again
        } catch (const idem::LeaseLostError&) {
            if (!finished_by(ticket))
                return idem::http::problem(410, {}, "The job was cancelled or taken over", id);
        }
        return json(200, {{"finished", id}});
    }
    /// The job was finished by this very ticket, and only the note that says so was lost.
    [[nodiscard]] bool finished_by(const idem::Ticket& ticket) {
        const auto record = requests_.find(ticket.key());
        return record && record->header.state == idem::State::succeeded &&
               record->header.owner == ticket.owner() && record->header.fence == ticket.fence();
    }

    /// Values are ids and numbers: nothing in them needs escaping.
    [[nodiscard]] static Response json(
        int status, std::initializer_list<std::pair<std::string_view, std::string>> members) {
        std::string body;
        for (const auto& [name, value] : members) {
            body += body.empty() ? "{\"" : ",\"";
            body.append(name).append("\":\"").append(value).append("\"");
        }
        return {status, {{"Content-Type", "application/json"}}, body + "}\n"};
    }

    static constexpr const char* lower_and_digits = "abcdefghijklmnopqrstuvwxyz0123456789";

    std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
    const Files& files_;
    Workers& workers_;
    idem::TokenIssuer<idem::AnyStore> tokens_;
    Guard requests_;
    /// Not the same guard: while `requests_` drains, running jobs still report here.
    Guard callbacks_;
};

}  // namespace transcode

#endif
