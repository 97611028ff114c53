// Package pd runs one request over a prefill/decode pair of LLM engines, or over
// one engine that does the whole work.
//
// In prefill/decode (PD) serving a prefill worker computes the prompt's KV
// cache and a decode worker receives it and produces the tokens. Both get the
// same body at the same time; each waits for the other. A regular worker is a
// whole engine and needs no other. This package owns what happens in between: it
// asks a [Planner] for a pair or a whole engine, has a [Dialect] run the HTTP calls,
// decides what a failure means and whether it may be tried again, and hands the
// caller a [Response] whose Body owns everything taken.
//
//	client ── Request ──► Orchestrator.Serve
//	                        │  Planner.Plan      leases on a prefill and a decode, or on a whole engine
//	                        │  fanOut            n > 1: one exchange per sample
//	                        │  Dialect.Exchange  two legs or one, first failure decides
//	                        │  retry             a pure decision, before the commit only
//	                        ▼
//	client ◄─ Response.Body (owns contexts, room, leases until its end)
//
// Vocabulary: a leg is one HTTP call to one worker; an exchange is the legs of
// one sample; an attempt is one plan and the exchanges it feeds; a request is
// what the client sent. The commit is the moment after which bytes may go to
// the client and nothing is retried any more.
//
// The package is embeddable under any HTTP server. It never imports a web
// framework or a logger, never reads the environment, and never changes a byte
// of a body that it does not have to.
package pd
