package simengine

import (
	"slices"
	"strings"
)

// The vocabulary: three special tokens, the 256 bytes, and words for outputs.
const (
	vocabSize            = 512
	eosToken             = 2
	firstByte            = 3
	firstWord            = firstByte + 256
	wordCount            = vocabSize - firstWord
	eosOdds              = 256 // one output token in so many is the end of sequence
	defaultContextLength = 1024
)

var (
	onsets = [...]string{"b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"}
	vowels = [...]string{"a", "e", "i", "o", "é"}
	codas  = [...]string{"", "n", "r", "l"}
)

// Params is what of a request decides its output.
type Params struct {
	MaxNewTokens int
	MinNewTokens int
	Seed         int64
	IgnoreEOS    bool
	Stop         []string
	StopTokenIDs []int
}

// Output is a finished generation.
type Output struct {
	IDs  []int
	Text string
	// Finish is "length" or "stop"; Matched is the stop string or token of a stop.
	Finish  string
	Matched any

	ends []int // length of the visible text after each token
}

// Expected is what any pair of engines answers to prompt.
func Expected(prompt []int, p Params) Output { return generate(hashTokens(prompt), p) }

// generate is the simulated model: a pure function of the prompt's hash, the
// seed and the position.
func generate(hash uint64, p Params) Output {
	out := Output{Finish: "length"}
	var text strings.Builder
	for i := range p.MaxNewTokens {
		id, eos := tokenAt(hash, p.Seed, i)
		if eos && !p.IgnoreEOS && i >= p.MinNewTokens {
			id = eosToken
		}
		out.IDs = append(out.IDs, id)
		text.WriteString(piece(id))
		out.ends = append(out.ends, text.Len())
		if id == eosToken || slices.Contains(p.StopTokenIDs, id) {
			out.Finish, out.Matched = "stop", id
			break
		}
		if cut, word := stopAt(text.String(), p.Stop); word != "" {
			out.Finish, out.Matched = "stop", word
			out.Text = text.String()[:cut]
			for j := range out.ends {
				out.ends[j] = min(out.ends[j], cut)
			}
			return out
		}
	}
	out.Text = text.String()
	return out
}

// tokenAt is the token at one position, and whether the sequence would end there.
func tokenAt(hash uint64, seed int64, i int) (id int, eos bool) {
	x := mix(hash ^ mix(uint64(seed)+0x51ed) + uint64(i)*0x9e3779b97f4a7c15)
	return firstWord + int(x%wordCount), (x>>40)%eosOdds == 0
}

func stopAt(text string, stops []string) (cut int, word string) {
	for _, s := range stops {
		if at := strings.Index(text, s); s != "" && at >= 0 {
			return at, s
		}
	}
	return 0, ""
}

// Tokenize is the tokenizer: one token for each byte.
func Tokenize(text string) []int {
	ids := make([]int, len(text))
	for i := range len(text) {
		ids[i] = firstByte + int(text[i])
	}
	return ids
}

// Detokenize is the text of ids. Special and unknown ones have none.
func Detokenize(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(piece(id))
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

func piece(id int) string {
	switch {
	case id >= firstWord && id < vocabSize:
		w := id - firstWord
		return " " + onsets[w%len(onsets)] + vowels[w/len(onsets)%len(vowels)] + codas[w/len(onsets)/len(vowels)%len(codas)]
	case id >= firstByte && id < firstWord:
		return string([]byte{byte(id - firstByte)})
	}
	return ""
}

// hashTokens folds a prompt into 64 bits; the empty prompt has one too.
func hashTokens(ids []int) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, id := range ids {
		h = foldToken(h, id)
	}
	return mix(h)
}

func foldToken(h uint64, id int) uint64 { return (h ^ uint64(id)) * 0x100000001b3 }

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// logprob is the log probability of id at one position of a sequence.
func logprob(hash uint64, pos, id int) float64 {
	return -5 - float64(mix(hash+uint64(pos)*31+uint64(id)*977)%4096)/4096
}

// topTokens are the n likeliest tokens at a position: id itself, then others
// that are less likely the later they come.
func topTokens(hash uint64, pos, id, n int) (ids []int, lps []float64) {
	lp := logprob(hash, pos, id)
	for i := range n {
		next := id
		if i > 0 {
			next = firstWord + (id+i)%wordCount
		}
		ids = append(ids, next)
		lps = append(lps, lp-float64(i)/16)
	}
	return ids, lps
}
