package sglang

import "strings"

// Echo says whose failure an engine's error message speaks of, when it is not
// the speaker's own. Either leg of a pair fails soon after the other and reports
// it in words of its own; blame must follow the words.
type Echo uint8

// The meanings of an engine's message.
const (
	EchoNone             Echo = iota // the engine speaks of itself or of the request
	EchoLostPrefill                  // decode: the handshake, the transfer or prefill itself was lost
	EchoLostDecode                   // prefill: decode left, died or could not be written to
	EchoBootstrapTimeout             // prefill: no decode came for the room in time, which is overload
	DuplicateRid                     // either: the rid of the request is still live in this engine
	EchoAborted                      // prefill: somebody's abort has ended it; decode has other words
)

// frontTexts open a message. What follows holds the client's rid, so a message is
// told by its front wherever it has one of these.
var frontTexts = []echoText{
	{"Decode handshake failed", EchoLostPrefill},
	{"Decode transfer failed", EchoLostPrefill},
	// Not "Duplicate request IDs detected within the request": that list of rids is
	// wrong in itself and no waiting mends it.
	{"Duplicate request ID detected", DuplicateRid},
}

// reasonTexts stand in the reason, which ends a message.
var reasonTexts = []echoText{
	{"Aborted by AbortReq", EchoAborted},
	{"in KVPoll.Bootstrapping", EchoBootstrapTimeout},
	{"in KVPoll.WaitingForInput", EchoLostPrefill},
	{"Lost connection with prefill instance", EchoLostPrefill},
	{"Failed to get kvcache from prefill instance", EchoLostPrefill},
	{"unknown reason from another rank", EchoLostDecode},
	{"Decode instance could be dead", EchoLostDecode},
	{"Failed to send kv chunk", EchoLostDecode},
}

type echoText struct {
	text string
	echo Echo
}

// reasonMark comes before the reason of a failed bootstrap or transfer, and
// behind the client's rid.
const reasonMark = " with exception "

// Classify reads an engine's error message. Messages it does not know are
// EchoNone: the engine that speaks is taken at its word.
func Classify(message string) Echo {
	for _, t := range frontTexts {
		if strings.HasPrefix(message, t.text) {
			return t.echo
		}
	}
	reason := message[strings.LastIndex(message, reasonMark)+1:]
	for _, t := range reasonTexts {
		if strings.Contains(reason, t.text) {
			return t.echo
		}
	}
	return EchoNone
}
