// Package single is the dialect of whole engines: one leg does all the work of a
// request, and gets the client's bytes as they came.
//
// It owns what happens between the planner's choice and the end of the answer:
// the call, its commit, its deadlines, the freeing of an engine whose client has
// left, and what the engine's words mean for retry and blame. Nothing is put into
// a body, so an engine is told of an abort only where the client named the
// request; else closing the socket has to do. Samples of one request are the
// engine's business.
//
// The one exception is a worker that stands for one data-parallel rank: the bodies
// of /generate, chat and completions name that rank, and it counts for more than
// what the client says of ranks there and in its header, which is cut. Other paths
// go out as they came even then, and the engine chooses.
//
// The orchestrator calls it. It never picks a worker, never retries, and never
// changes another byte in either direction, but for the engine's address in an
// error.
package single
