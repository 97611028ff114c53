package pd

import (
	"encoding/json"
	"strconv"

	"github.com/tandem-pd/tandem/pd/patch"
)

// mergeUsage merges the usage objects of OpenAI answers or events: that of the
// first answer that has one, with the completion's tokens of all added up and
// the total counted anew. Its prompt and cached tokens stay, since every sample
// counted the same prompt. nil means that no answer has one.
func mergeUsage(answers []*patch.Doc) ([]byte, error) {
	usages, err := nested(answers, "usage")
	if err != nil || len(usages) == 0 {
		return nil, err
	}
	first := usages[0]
	edit := first.Edit()
	details, err := mergeDetails(usages)
	if err != nil {
		return nil, err
	}
	if details != nil {
		edit.Replace("completion_tokens_details", details)
	}
	replaceSum(edit, usages, "reasoning_tokens")
	completion := replaceSum(edit, usages, "completion_tokens")
	if prompt, ok := integer(first, "prompt_tokens"); ok {
		edit.Replace("total_tokens", strconv.AppendInt(nil, prompt+completion, 10))
	}
	return edit.Payload().Bytes(), nil
}

// mergeDetails adds up every number of completion_tokens_details, whatever the
// engine calls it. nil means that no usage has details.
func mergeDetails(usages []*patch.Doc) ([]byte, error) {
	all, err := nested(usages, "completion_tokens_details")
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var names map[string]json.RawMessage
	if err := json.Unmarshal(all[0].Bytes(), &names); err != nil {
		return nil, err
	}
	edit := all[0].Edit()
	for name := range names {
		replaceSum(edit, all, name)
	}
	return edit.Payload().Bytes(), nil
}

// nested collects the objects called name; what is no object does not count.
func nested(docs []*patch.Doc, name string) ([]*patch.Doc, error) {
	var found []*patch.Doc
	for _, doc := range docs {
		v, ok := doc.Get(name)
		if !ok || v.Kind() != '{' {
			continue
		}
		inner, err := v.Object()
		if err != nil {
			return nil, err
		}
		found = append(found, inner)
	}
	return found, nil
}

// replaceSum puts the sum of a member over all docs into the first one, of which
// edit is an edit, if that has a number there.
func replaceSum(edit *patch.Edit, docs []*patch.Doc, name string) int64 {
	var sum int64
	for _, doc := range docs {
		n, _ := integer(doc, name)
		sum += n
	}
	if _, ok := integer(docs[0], name); ok {
		edit.Replace(name, strconv.AppendInt(nil, sum, 10))
	}
	return sum
}

func integer(doc *patch.Doc, name string) (int64, bool) {
	v, ok := doc.Get(name)
	if !ok {
		return 0, false
	}
	return v.Int()
}
