// Package simengine runs simulated SGLang 0.5 engines, in prefill/decode mode
// and whole: real HTTP/1.1 servers on loopback that parse, pair, answer, hang
// and die as the real ones were measured to do, without a model behind them.
//
// A prefill engine owns three listeners: its API, its bootstrap server and a
// rank address. A decode or regular engine owns one. Decode finds its prefill as
// the real one does: it asks http://bootstrap_host:bootstrap_port/route, named by
// the body of the request, and talks to the rank address it is told. The two sides
// need not share a process: [Run] starts one engine per process.
//
// A [Regular] engine computes prompts and generates itself. It also answers
// /v1/responses, /v1/messages, /v1/embeddings, /v1/rerank, /v1/classify and
// /v1/score, whatever the kind of its model, and names itself there in "sim".
//
// An engine can be told to pause, to load weights and, with [Config.RoleSwitch],
// to become the other half of a pair: an idle prefill closes its bootstrap
// server, an idle decode opens one.
//
// Outputs are a pure function of prompt, seed and position ([Expected]), so a
// test can compute what any pair of engines must answer, and a pairing of two
// different requests shows in the text.
//
// Tests of the router and the load tools call this package. It knows nothing
// of the router, imports the standard library only, and publishes no KV events
// over ZMQ (there is no ZMQ in the standard library).
//
// What differs from a real engine on purpose: text is tokenized by bytes, the
// prefix cache counts in blocks of 16 tokens and holds prompts only, new weights
// change no output, a prompt that is computed holds up no decoding, a decode
// reserves prompt and max_new_tokens from its KV budget at once (no retraction),
// and a seed counts whatever the temperature is.
package simengine
