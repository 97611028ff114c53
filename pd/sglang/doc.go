// Package sglang is the dialect of SGLang's prefill/decode pairs: both legs get
// the client's body at the same time, joined by a bootstrap room; prefill
// answers one token when its KV cache has been handed over, decode answers the
// whole.
//
// It owns what SGLang's bodies, events and errors mean: which fields are
// written, which never reach an engine, what counts as a failure, and how the
// prompt's log probabilities of prefill are put into decode's answer. It never
// picks a worker and never retries.
package sglang
