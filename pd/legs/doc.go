// Package legs holds what the dialects share: one dispatched call and all that
// it holds ([Leg]), the two legs of a pair with the rule of who is heard first
// ([Pair]), what a leg's failure says of its worker ([Failure]), the held beginning
// of an answer ([Hold], [HoldPlain]), the deadline of each of its reads ([Idle]),
// and the bounded queue of aborts that free a dropped leg's engine ([Aborter]).
//
// It knows nothing of what a body or an event says; that is a dialect's. It
// never retries and never picks a worker.
package legs
