#ifndef IDEM_HTTP_HPP
#define IDEM_HTTP_HPP

// The words of HTTP, without a server: read the request's key, guard the handler, answer.
//
//     const auto key = idem::http::parse_key(request.header("Idempotency-Key"));
//     if (key.refused()) return key.problem;
//     return idem::http::respond(
//         guard.run(idem::http::request_key("orders.create", user.id, key.text),
//                   idem::http::request_fingerprint(request.method, request.target,
//                                                   request.content_type, request.body),
//                   [&] { return create_order(request); }));  // an idem::http::Response

#include <idem/http/key.hpp>
#include <idem/http/problem.hpp>
#include <idem/http/respond.hpp>
#include <idem/http/respond_error.hpp>
#include <idem/http/response.hpp>
#include <idem/http/status.hpp>
#include <idem/http/status_document.hpp>

#endif
