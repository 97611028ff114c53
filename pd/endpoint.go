package pd

// Endpoint is the API a request speaks. It decides which fields of a body name
// the batch, what an error looks like and how answers are merged.
type Endpoint uint8

// The three endpoints that run on a prefill/decode pair, and all others, which
// only a whole engine serves.
const (
	Generate    Endpoint = iota // SGLang's POST /generate
	Chat                        // OpenAI's POST /v1/chat/completions
	Completions                 // OpenAI's POST /v1/completions
	Other                       // whatever [Request.Target] names
)

// Path is the endpoint's path on the router and on every engine, empty for Other.
func (e Endpoint) Path() string {
	switch e {
	case Chat:
		return "/v1/chat/completions"
	case Completions:
		return "/v1/completions"
	case Other:
		return ""
	default:
		return "/generate"
	}
}

// OpenAI reports whether bodies and errors have OpenAI's shape.
func (e Endpoint) OpenAI() bool { return e != Generate }

// String is the endpoint's short name for logs.
func (e Endpoint) String() string {
	switch e {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Other:
		return "other"
	default:
		return "generate"
	}
}
