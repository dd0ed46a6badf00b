#ifndef TRANSCODE_SERVICE_HPP
#define TRANSCODE_SERVICE_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <httplib.h>

#include <idem/any_store.hpp>
#include <idem/guard.hpp>
#include <idem/http.hpp>
#include <idem/token.hpp>

#include "counters.hpp"
#include "files.hpp"
#include "requests.hpp"
#include "workers.hpp"

namespace transcode {

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
        return json(201, {{"token", quoted(tokens_.issue(caller_of(request)))}});
    }

    /// POST /uploads, `Upload-Token: <token>`: makes an upload. The token is good for one; sent
    /// again it names the same upload, whose id was drawn when it was first used.
    [[nodiscard]] Response create_upload(const httplib::Request& request) {
        const std::string caller = caller_of(request);
        const auto outcome = tokens_.redeem(request.get_header_value("Upload-Token"), caller,
                                            fingerprint_of(request), {.wait = patience},
                                            [&](idem::Execution& execution) {
                                                const std::string id = random_id();
                                                fs::create_directories(files_.upload(caller, id));
                                                execution.resource(id);
                                                return json(201, {{"upload", quoted(id)}});
                                            });
        return idem::http::respond(outcome, answers("/uploads/"));
    }

    /// PUT /uploads/<upload>/parts/<number>: needs no guard, for it is idempotent by itself: a
    /// repeat writes the same bytes to the same path, and readers see whole parts only. The body
    /// is read to its end whatever it meets: what is left of it would be the next request.
    [[nodiscard]] Response put_part(const httplib::Request& request,
                                    const httplib::ContentReader& body) {
        TemporaryFile part(files_.temporary("part." + random_id()));
        FingerprintingWriter writer(part.path());
        std::exception_ptr trouble;
        const bool whole = body([&](const char* data, std::size_t size) {
            try {
                if (!trouble) writer.write({data, size});
            } catch (...) {
                trouble = std::current_exception();
            }
            return true;
        });
        if (trouble) std::rethrow_exception(trouble);
        if (!whole) throw BadRequest("the part did not arrive whole");

        const std::string caller = caller_of(request);
        const std::string upload = request.matches[1];
        const std::string sha256 = writer.finish();
        if (!fs::exists(files_.upload(caller, upload))) return not_found("there is no such upload");
        part.publish(files_.part(caller, upload, number<unsigned>("part", request.matches[2])));
        counters_->count("upload.part", "stored");
        return json(200, {{"sha256", quoted(sha256)}, {"bytes", std::to_string(writer.bytes())}});
    }

    /// POST /uploads/<upload>/merge, `parts=<count>&sha256=<of the whole>`: joins the parts. Its
    /// key is made of the upload and the digest, so clients need not send one.
    [[nodiscard]] Response merge(const httplib::Request& request) {
        const std::string caller = caller_of(request);
        const std::string upload = request.matches[1];
        const std::string sha256 = digest_field(request, "sha256");
        const auto parts = number_field<unsigned>(request, "parts");
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
        const auto header = idempotency_key(request);
        if (header.refused()) return header.problem;
        const idem::Key key = job_key(caller_of(request), header.text);
        Job job = parse_job(request, key.id);
        const auto options = job_answers(key.id);

        auto claimed = requests_.claim<Response>(key, fingerprint_of(request));
        if (const auto* outcome = std::get_if<idem::Outcome<Response>>(&claimed))
            return idem::http::respond(*outcome, options);
        auto& claim = std::get<idem::Claim<Response>>(claimed);
        const idem::Outcome<Response> accepted = claim.pending();
        workers_.accept({std::move(job), std::move(claim)});
        return idem::http::respond(accepted, options);
    }

    /// GET /jobs/<job>: where the job stands.
    [[nodiscard]] Response status(const httplib::Request& request) {
        const idem::Key key = stored_key(request);
        return idem::http::status_document(requests_.find(key), job_answers(key.id));
    }

    /// GET /jobs/<job>/output: the path of the encoded file, which may not be there.
    [[nodiscard]] fs::path output(const httplib::Request& request) const {
        return files_.output(caller_of(request), request.matches[1]);
    }

    /// DELETE /jobs/<job>: the key is forgotten. A worker that is at it, in this process or another
    /// one, is told at its next renewal that it lost its claim, and stops its ffmpeg.
    [[nodiscard]] Response cancel(const httplib::Request& request) {
        if (requests_.forget(stored_key(request))) return {.status = 204};
        return not_found("there is no such job");
    }

    /// POST /callbacks/transcode, `Message-Id: <id>`: a worker has finished. The message comes at
    /// least once; its id makes that once. The ticket in it is the right to finish the job.
    [[nodiscard]] Response callback(const httplib::Request& request) {
        const auto ticket = idem::Ticket::parse(request.get_param_value("ticket"));
        const std::string sha256 = digest_field(request, "sha256");
        const auto bytes = number_field<std::uint64_t>(request, "bytes");
        const idem::Key message{.scope = "transcode.callback",
                                .id = request.get_header_value("Message-Id")};
        const auto outcome = callbacks_.run(message, fingerprint_of(request), {.wait = patience},
                                            [&] { return finish_job(ticket, sha256, bytes); });
        return idem::http::respond(outcome, answers());
    }

    /// GET /healthz: 503 with the reasons where something is wrong.
    [[nodiscard]] Response health() {
        const idem::Health health = requests_.health();
        std::string text;
        for (const std::string& problem : health.problems) text += problem + '\n';
        return {health.ok() ? 200 : 503,
                {{"Content-Type", "text/plain"}},
                text.empty() ? "ok\n" : text};
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

    /// How outcomes become answers. Resources are found under `place`.
    [[nodiscard]] static idem::http::RespondOptions answers(const std::string& place = "/jobs/") {
        return {.profile = idem::http::Profile::async_job,
                .resource_url = [place](std::string_view id) { return place + std::string(id); },
                .retry_after_max = std::chrono::seconds{1}};
    }
    [[nodiscard]] static idem::http::RespondOptions job_answers(const std::string& id) {
        idem::http::RespondOptions options = answers();
        options.status_url = "/jobs/" + id;
        options.resource_url = [](std::string_view job) { return output_url(std::string(job)); };
        return options;
    }
    [[nodiscard]] static std::string output_url(const std::string& job) {
        return "/jobs/" + job + "/output";
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

    /// Both refusals are 409, which is retryable: the claim is rolled back, and the same request
    /// works once the parts are right.
    [[nodiscard]] Response join_parts(const std::string& caller, const std::string& upload,
                                      unsigned parts, const std::string& sha256) const {
        TemporaryFile whole(files_.temporary("whole." + random_id()));
        std::ofstream out(whole.path(), std::ios::binary);
        for (unsigned part = 1; part <= parts; ++part) {
            std::ifstream in(files_.part(caller, upload, part), std::ios::binary);
            if (!in) return conflict("part " + std::to_string(part) + " is missing");
            if (in.peek() != std::ifstream::traits_type::eof()) out << in.rdbuf();
        }
        out.close();
        if (!out) throw std::runtime_error("cannot write " + whole.path().string());
        // Of the file as it is on disk, not of what was meant to be written.
        if (hex(idem::Fingerprint::of_file(whole.path()).digest()) != sha256)
            return conflict("the parts do not make up the file with this digest");
        const auto bytes = fs::file_size(whole.path());
        whole.publish(files_.input(caller, sha256));
        return json(201, {{"input", quoted(sha256)}, {"bytes", std::to_string(bytes)}});
    }

    /// Records the job's one answer. What is returned answers the message, not the job.
    [[nodiscard]] Response finish_job(const idem::Ticket& ticket, const std::string& sha256,
                                      std::uint64_t bytes) {
        const std::string& id = ticket.key().id;
        const Response done = json(201, {{"job", quoted(id)},
                                         {"output", quoted(output_url(id))},
                                         {"bytes", std::to_string(bytes)},
                                         {"sha256", quoted(sha256)}});
        try {
            const auto outcome = requests_.resume<Response>(ticket).complete(done);
            if (!outcome.recorded()) return {.status = 503};  // retryable: send it again
        } catch (const idem::LeaseLostError&) {
            if (!finished_by(ticket))
                return idem::http::problem(410, {}, "Gone", "the job was cancelled or taken over");
        }
        return json(200, {{"finished", quoted(id)}});
    }
    /// The job was finished by this very ticket, and only the note that says so was lost.
    [[nodiscard]] bool finished_by(const idem::Ticket& ticket) {
        const auto record = requests_.find(ticket.key());
        return record && record->header.state == idem::State::succeeded &&
               record->header.owner == ticket.owner() && record->header.fence == ticket.fence();
    }

    std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
    const Files& files_;
    Workers& workers_;
    idem::TokenIssuer<idem::AnyStore> tokens_;
    Guard requests_;
    Guard callbacks_;  ///< By itself: while `requests_` drains, running jobs still report here.
};

}  // namespace transcode

#endif
