package patch

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is a naive edit: a decoded object in which the last member of a name wins.
type model struct {
	object   map[string]any
	nested   []func() // changes within values, which a replaced or cut value does not show
	replaced map[string]any
	cut      map[string]bool
}

func (m *model) apply(members []Member) map[string]any {
	for _, change := range m.nested {
		change()
	}
	maps.Copy(m.object, m.replaced)
	maps.DeleteFunc(m.object, func(name string, _ any) bool { return m.cut[name] })
	for _, member := range members {
		m.object[member.Name] = json.Number(member.Raw)
	}
	return m.object
}

func (m *model) replaceNested(name, sub string, number json.Number) {
	set := func(value any) {
		if object, ok := value.(map[string]any); ok {
			if _, ok := object[sub]; ok {
				object[sub] = number
			}
		}
	}
	m.nested = append(m.nested, func() {
		value := m.object[name]
		set(value)
		if array, ok := value.([]any); ok {
			for _, element := range array {
				set(element)
			}
		}
	})
}

// decode keeps numbers as they are spelled.
func decode(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&object))
	return object
}

// choices draws small numbers from fuzz input; they are 0 when it runs out.
type choices []byte

func (c *choices) next(n int) int {
	if len(*c) == 0 {
		return 0
	}
	v := int((*c)[0]) % n
	*c = (*c)[1:]
	return v
}

// fuzzEdit makes the edits that the choices say, in the model too, and returns the members to write.
func fuzzEdit(doc *Doc, m *model, choose *choices) (*Edit, []Member) {
	names := append(slices.Sorted(maps.Keys(m.object)), "absent", "n", "rid")
	name := func() string { return names[choose.next(len(names))] }
	e := doc.Edit()
	var members []Member
	for step := 0; len(*choose) > 0; step++ {
		number := strconv.Itoa(1000 + step)
		switch choose.next(5) {
		case 0:
			cut := name()
			e.Cut(cut)
			m.cut[cut] = true
		case 1:
			replaced := name()
			if e.Replace(replaced, []byte(number)) {
				m.replaced[replaced] = json.Number(number)
			}
		case 2:
			outer, sub := name(), []string{"n", "seed", "a"}[choose.next(3)]
			replace := func(int, Value) []byte { return []byte(number) }
			if e.ReplaceNested(outer, sub, replace) == nil {
				m.replaceNested(outer, sub, json.Number(number))
			}
		case 3:
			added := []string{"room", "rid", "n", "a"}[choose.next(4)]
			taken := slices.ContainsFunc(members, func(m Member) bool { return m.Name == added })
			if !taken {
				members = append(members, Member{added, []byte(number)})
				m.cut[added] = true
			}
		case 4:
			before := e
			e = before.Clone()
			before.Cut(name())
			before.Replace(name(), []byte(`"before"`))
		}
	}
	return e, members
}

// FuzzPayload compares edits with the same changes to a decoded object, and checks that what stays is kept byte by byte.
func FuzzPayload(f *testing.F) {
	for _, body := range accepted {
		addSeed(f, body, []byte{0, 0, 1, 1, 2, 0, 0, 3, 1})
		addSeed(f, body, []byte{3, 0, 3, 1, 4, 1, 1, 0, 2})
	}
	f.Add([]byte(`{ "n":1 , "p":[ {"seed":1,"seed":2} , null,{"n":{}} ],"a":{"a":[]},"\u006e":"x" } `), []byte{2, 2, 1, 2, 0, 2, 0, 1, 3, 3, 1})
	f.Fuzz(func(t *testing.T, body, plan []byte) {
		doc, err := Scan(body)
		if err != nil {
			return
		}
		before := bytes.Clone(body)
		choose := choices(plan[:min(len(plan), 64)])
		m := &model{object: decode(t, body), replaced: map[string]any{}, cut: map[string]bool{}}
		e, members := fuzzEdit(doc, m, &choose)
		payload := e.Payload(members...)
		text := payload.Bytes()

		require.Equal(t, before, body)
		require.True(t, json.Valid(text), "%q", text)
		require.Equal(t, m.apply(members), decode(t, text))
		requireKept(t, doc, e, members, text)

		require.EqualValues(t, len(text), payload.Len())
		read, err := io.ReadAll(payload.NewReader())
		require.NoError(t, err)
		require.Equal(t, text, read)
	})
}

// requireKept checks that text is the body's bytes before its members, the new members, every member that stays as it
// was spelled, with nothing but one comma and the body's white space between two of them, and the body's bytes after.
func requireKept(t *testing.T, doc *Doc, e *Edit, members []Member, text []byte) {
	t.Helper()
	head := doc.src[:doc.open+1]
	require.True(t, bytes.HasPrefix(text, head))
	rest := text[len(head):]
	for i, m := range members {
		rest = requireNext(t, rest, `"`+m.Name+`":`+string(m.Raw), i == 0)
	}
	first := len(members) == 0
	end := doc.open + 1
	for i, m := range doc.members {
		end = m.valueEnd
		if e.isCut(i, members) {
			continue
		}
		untouched := !slices.ContainsFunc(e.replaced, func(s span) bool { return s.start >= m.value && s.end <= m.valueEnd })
		piece := doc.src[m.name:m.value]
		if untouched {
			piece = doc.src[m.name:m.valueEnd]
		}
		rest = requireNext(t, rest, string(piece), first)
		if !untouched { // its value is compared as a decoded one
			rest = rest[skipValue(rest, 0):]
		}
		first = false
	}
	require.Equal(t, string(doc.src[end:]), string(rest[max(0, len(rest)-len(doc.src[end:])):]))
	require.Len(t, bytes.TrimLeft(rest, " \t\r\n"), len(bytes.TrimLeft(doc.src[end:], " \t\r\n")))
}

// requireNext takes piece and the comma and white space before it off the start of text.
func requireNext(t *testing.T, text []byte, piece string, first bool) []byte {
	t.Helper()
	text = bytes.TrimLeft(text, " \t\r\n")
	if !first {
		require.True(t, bytes.HasPrefix(text, []byte(",")))
		text = bytes.TrimLeft(text[1:], " \t\r\n")
	}
	require.True(t, bytes.HasPrefix(text, []byte(piece)), "%q does not start with %q", text, piece)
	return text[len(piece):]
}
