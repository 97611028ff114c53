package pd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/tandem-pd/tandem/pd/patch"
)

// merging makes one answer of the answers of n samples. Its methods are pure.
type merging struct {
	endpoint Endpoint
	n        int
	id       []byte // the one id of OpenAI answers, as JSON
}

func newMerging(req *Request, n int) merging {
	id, _ := json.Marshal(req.PublicID()) // a string always has a JSON form
	return merging{endpoint: req.Endpoint, n: n, id: id}
}

// index is the place of sample j of prompt i in the merged answer.
func (m merging) index(i int64, j int) ([]byte, error) {
	if i < 0 || i > math.MaxInt32 {
		return nil, errors.New("an index is out of range")
	}
	return strconv.AppendInt(nil, i*int64(m.n)+int64(j), 10), nil
}

// plain merges the whole bodies of n samples, in prompt-major order. On
// /generate the items become one array. On OpenAI endpoints sample 0's object
// takes up everybody's choices, renumbered, and the merged usage. Every other
// byte of that object and of each item is copied as it came.
func (m merging) plain(bodies [][]byte) ([]byte, error) {
	if m.endpoint.OpenAI() {
		return m.plainOpenAI(bodies)
	}
	answers := make([][]patch.Value, len(bodies))
	for j, body := range bodies {
		if !json.Valid(body) {
			return nil, fmt.Errorf("the answer of sample %d is not JSON", j)
		}
		answer := patch.Value{Raw: bytes.Trim(body, " \t\r\n")}
		switch answer.Kind() {
		case '{':
			answers[j] = []patch.Value{answer}
		case '[':
			answers[j] = elements(answer)
		default:
			return nil, fmt.Errorf("the answer of sample %d is no object or array", j)
		}
	}
	return interleave(answers, func(dst *bytes.Buffer, _, _ int, item patch.Value) error {
		dst.Write(item.Raw)
		return nil
	})
}

func (m merging) plainOpenAI(bodies [][]byte) ([]byte, error) {
	docs := make([]*patch.Doc, len(bodies))
	choices := make([][]patch.Value, len(bodies))
	for j, body := range bodies {
		doc, err := patch.Scan(body)
		if err != nil {
			return nil, fmt.Errorf("sample %d: %w", j, err)
		}
		list, ok := doc.Get("choices")
		if !ok || list.Kind() != '[' {
			return nil, fmt.Errorf("the answer of sample %d has no choices", j)
		}
		docs[j], choices[j] = doc, elements(list)
	}
	merged, err := interleave(choices, m.choice)
	if err != nil {
		return nil, err
	}
	usage, err := mergeUsage(docs)
	if err != nil {
		return nil, err
	}
	edit := docs[0].Edit()
	edit.Replace("id", m.id)
	edit.Replace("choices", merged)
	if usage != nil {
		edit.Replace("usage", usage)
	}
	return edit.Payload().Bytes(), nil
}

// choice writes sample j's choice for prompt i with its index in the merged
// answer. It is the choice's place that counts, not the index it came with.
func (m merging) choice(dst *bytes.Buffer, i, j int, choice patch.Value) error {
	doc, err := choice.Object()
	if err != nil {
		return fmt.Errorf("choice %d of sample %d: %w", i, j, err)
	}
	index, err := m.index(int64(i), j)
	if err != nil {
		return err
	}
	writeTo(dst, withMember(doc.Edit(), "index", index))
	return nil
}

// withMember lays edit out with the member set in its place, or put first where
// there is none.
func withMember(edit *patch.Edit, name string, raw []byte) *patch.Payload {
	if edit.Replace(name, raw) {
		return edit.Payload()
	}
	return edit.Payload(patch.Member{Name: name, Raw: raw})
}

// interleave writes one array of the samples' items: all samples of the first
// prompt, then all of the second, and so on.
func interleave(samples [][]patch.Value, write func(dst *bytes.Buffer, i, j int, item patch.Value) error) ([]byte, error) {
	size := len("[]")
	for j, items := range samples {
		if len(items) != len(samples[0]) {
			return nil, fmt.Errorf("sample 0 answers %d prompts, sample %d answers %d", len(samples[0]), j, len(items))
		}
		for _, item := range items {
			size += len(item.Raw) + len(",")
		}
	}
	dst := bytes.NewBuffer(make([]byte, 0, size))
	dst.WriteByte('[')
	for i := range samples[0] {
		for j := range samples {
			if i+j > 0 {
				dst.WriteByte(',')
			}
			if err := write(dst, i, j, samples[j][i]); err != nil {
				return nil, err
			}
		}
	}
	dst.WriteByte(']')
	return dst.Bytes(), nil
}

func elements(array patch.Value) []patch.Value {
	list := make([]patch.Value, 0, array.Len())
	for _, element := range array.All() {
		list = append(list, element)
	}
	return list
}

// writeTo copies payload; a bytes.Buffer never fails.
func writeTo(dst *bytes.Buffer, payload *patch.Payload) {
	_, _ = payload.NewReader().WriteTo(dst)
}

// broken is the error of samples whose answers cannot become one.
func broken(code, message string, err error) *Error {
	return &Error{
		Stage: StageDecode, Kind: Broken, Status: http.StatusBadGateway,
		Code: code, Message: message, Err: err,
	}
}
