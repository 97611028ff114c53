// Package legs holds what the dialects share: one dispatched call and all that
// it holds ([Leg]), the two legs of a pair with the rule of who is heard first
// ([Pair]), the held first event of a stream ([Hold]), and the bounded queue of
// aborts that free a dropped leg's engine ([Aborter]).
//
// It knows nothing of what a body or an event says; that is a dialect's. It
// never retries and never picks a worker.
package legs
