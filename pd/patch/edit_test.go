package patch

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func editOf(t *testing.T, body string) *Edit {
	t.Helper()
	doc, err := Scan([]byte(body))
	require.NoError(t, err)
	return doc.Edit()
}

// assertText checks the text of an edit with some members, and that it is valid JSON.
func assertText(t *testing.T, want string, e *Edit, members ...Member) {
	t.Helper()
	got := e.Payload(members...).Bytes()
	assert.Equal(t, want, string(got))
	assert.True(t, json.Valid(got))
}

func TestNoEditKeepsEveryByte(t *testing.T) {
	for name, body := range accepted {
		t.Run(name, func(t *testing.T) { assertText(t, body, editOf(t, body)) })
	}
}

func TestCutTakesOneCommaAlong(t *testing.T) {
	for name, f := range map[string]struct {
		body, cut, want string
	}{
		"first":                  {`{"a":1,"b":2,"c":3}`, "a", `{"b":2,"c":3}`},
		"middle":                 {`{"a":1,"b":2,"c":3}`, "b", `{"a":1,"c":3}`},
		"last":                   {`{"a":1,"b":2,"c":3}`, "c", `{"a":1,"b":2}`},
		"first two":              {`{"a":1,"b":2,"c":3}`, "a b", `{"c":3}`},
		"last two":               {`{"a":1,"b":2,"c":3}`, "b c", `{"a":1}`},
		"first and last":         {`{"a":1,"b":2,"c":3}`, "a c", `{"b":2}`},
		"all":                    {`{"a":1,"b":2,"c":3}`, "c a b", `{}`},
		"the only one":           {`{"a":1}`, "a", `{}`},
		"of an empty object":     {`{}`, "a", `{}`},
		"absent":                 {`{"a":1}`, "b", `{"a":1}`},
		"null":                   {`{"a":null,"b":2}`, "a", `{"b":2}`},
		"every copy":             {`{"a":1,"b":2,"a":[3],"c":4,"a":5}`, "a", `{"b":2,"c":4}`},
		"every spelling":         {`{"\u0061":1,"b":2,"a":3}`, "a", `{"b":2}`},
		"not within a value":     {`{"b":{"a":1}}`, "a", `{"b":{"a":1}}`},
		"first, spaced":          {`{ "a" : 1 , "b" : 2 , "c" : 3 }`, "a", `{ "b" : 2 , "c" : 3 }`},
		"middle, spaced":         {`{ "a" : 1 , "b" : 2 , "c" : 3 }`, "b", `{ "a" : 1 , "c" : 3 }`},
		"last, spaced":           {`{ "a" : 1 , "b" : 2 , "c" : 3 }`, "c", `{ "a" : 1 , "b" : 2 }`},
		"all, spaced":            {" { \"a\" : 1\n,\n\"b\" : 2 } ", "a b", " {  } "},
		"a value with brackets":  {`{"a":"},{","b":[{}],"c":0}`, "b", `{"a":"},{","c":0}`},
		"alternating, of copies": {`{"a":1,"b":1,"a":2,"b":2}`, "b", `{"a":1,"a":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, f.body)
			e.Cut(strings.Fields(f.cut)...)
			assertText(t, f.want, e)
		})
	}
}

func TestReplaceRewritesEveryCopy(t *testing.T) {
	for name, f := range map[string]struct {
		body, name, want string
		found            bool
	}{
		"one":               {`{"a":1,"n":2,"c":3}`, "n", `{"a":1,"n":99,"c":3}`, true},
		"the only one":      {` { "n" : "x" } `, "n", ` { "n" : 99 } `, true},
		"several":           {`{"n":1,"a":2,"n":{"n":3}}`, "n", `{"n":99,"a":2,"n":99}`, true},
		"any spelling":      {`{"\u006e":1,"n":2}`, "n", `{"\u006e":99,"n":99}`, true},
		"null":              {`{"n":null}`, "n", `{"n":99}`, true},
		"none":              {`{"a":1}`, "n", `{"a":1}`, false},
		"of an empty":       {`{}`, "n", `{}`, false},
		"one and keeps all": {"{\"a\":1e5 ,\r\n\"n\":1\t,\"a\":\"\\u00e9\\/\"}", "n", "{\"a\":1e5 ,\r\n\"n\":99\t,\"a\":\"\\u00e9\\/\"}", true},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, f.body)
			assert.Equal(t, f.found, e.Replace(f.name, []byte("99")))
			assertText(t, f.want, e)
		})
	}
}

func TestPayloadWritesMembersFirst(t *testing.T) {
	room := Member{"bootstrap_room", []byte(`42`)}
	rid := Member{"rid", []byte(`["x","y"]`)}
	for name, f := range map[string]struct {
		body    string
		cut     string
		members []Member
		want    string
	}{
		"before the others":        {`{"a":1}`, "", []Member{room}, `{"bootstrap_room":42,"a":1}`},
		"in the order given":       {`{"a":1}`, "", []Member{rid, room}, `{"rid":["x","y"],"bootstrap_room":42,"a":1}`},
		"into an empty object":     {`{}`, "", []Member{room, rid}, `{"bootstrap_room":42,"rid":["x","y"]}`},
		"into a spaced empty one":  {` { } `, "", []Member{room}, ` {"bootstrap_room":42 } `},
		"where all others are cut": {`{"a":1,"b":2}`, "a b", []Member{room}, `{"bootstrap_room":42}`},
		"in the place of a copy":   {`{"a":1,"rid":"z"}`, "", []Member{rid}, `{"rid":["x","y"],"a":1}`},
		"in the place of all copies": {
			`{"bootstrap_room":0,"a":1,"bootstrap_\u0072oom":-1,"b":2,"bootstrap_room":null}`, "",
			[]Member{room},
			`{"bootstrap_room":42,"a":1,"b":2}`,
		},
		"in the place of the only one": {`{ "rid":1 }`, "", []Member{rid}, `{"rid":["x","y"]  }`},
		"after leading white space":    {"\n{\n \"a\":1}", "", []Member{room}, "\n{\"bootstrap_room\":42,\n \"a\":1}"},
		"none":                         {`{"a":1}`, "", nil, `{"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, f.body)
			e.Cut(strings.Fields(f.cut)...)
			assertText(t, f.want, e, f.members...)
		})
	}
}

func TestOneEditServesPayloadsOfDifferentMembers(t *testing.T) {
	e := editOf(t, `{"a":1,"rid":"x","room":0}`)
	assertText(t, `{"room":1,"a":1,"rid":"x"}`, e, Member{"room", []byte("1")})
	assertText(t, `{"rid":2,"a":1,"room":0}`, e, Member{"rid", []byte("2")})
	assertText(t, `{"a":1,"rid":"x","room":0}`, e)
}

// plusElem writes an integer that is as much larger as the index of its object.
func plusElem(elem int, old Value) []byte {
	n, ok := old.Int()
	if !ok {
		return nil
	}
	return strconv.AppendInt(nil, n+int64(elem), 10)
}

func TestReplaceNestedReachesEveryObject(t *testing.T) {
	for name, f := range map[string]struct{ body, want string }{
		"an object":                   {`{"p":{"seed":5,"n":2}}`, `{"p":{"seed":5,"n":2}}`},
		"each of an array":            {`{"p":[{"seed":5},{"seed":5},{"seed":5}]}`, `{"p":[{"seed":5},{"seed":6},{"seed":7}]}`},
		"with what is around it":      {`{ "a":0,"p" : [ {"x":1} , { "y" : 2, "seed" : 5 } ] }`, `{ "a":0,"p" : [ {"x":1} , { "y" : 2, "seed" : 6 } ] }`},
		"every copy of the member":    {`{"p":[{},{"seed":1,"seed":2,"\u0073eed":3}]}`, `{"p":[{},{"seed":2,"seed":3,"\u0073eed":4}]}`},
		"every copy of the name":      {`{"p":[{},{"seed":1}],"\u0070":[{},{"seed":2}]}`, `{"p":[{},{"seed":2}],"\u0070":[{},{"seed":3}]}`},
		"and leaves what is nil":      {`{"p":[{},{"seed":null},{"seed":1}]}`, `{"p":[{},{"seed":null},{"seed":3}]}`},
		"and passes over nulls":       {`{"p":[null,{"seed":1}]}`, `{"p":[null,{"seed":2}]}`},
		"and a name that is null":     {`{"p":null}`, `{"p":null}`},
		"and an absent name":          {`{"seed":1}`, `{"seed":1}`},
		"and an empty array":          {`{"p":[]}`, `{"p":[]}`},
		"not deeper than one object":  {`{"p":[{},{"q":{"seed":1}}]}`, `{"p":[{},{"q":{"seed":1}}]}`},
		"not members with other name": {`{"q":[{},{"seed":1}]}`, `{"q":[{},{"seed":1}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, f.body)
			require.NoError(t, e.ReplaceNested("p", "seed", plusElem))
			assertText(t, f.want, e)
		})
	}
}

func TestReplaceNestedRefusesOtherShapes(t *testing.T) {
	many := `{"p":[` + strings.TrimSuffix(strings.Repeat(`{"seed":1},`, maxNested+1), ",") + `]}`
	for name, f := range map[string]struct {
		body string
		want SyntaxError
	}{
		"a string":                     {`{"p":"x"}`, SyntaxError{5, "not a JSON object"}},
		"an element that is no object": {`{"p":[{"seed":1},2]}`, SyntaxError{17, "not a JSON object"}},
		"a bad copy after a good one":  {`{"p":[{},{"seed":1}],"p":true}`, SyntaxError{25, "not a JSON object"}},
		"too many of them":             {many, SyntaxError{len(many) - 4, "too many values to rewrite"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, f.body)
			err := e.ReplaceNested("p", "seed", func(int, Value) []byte { return []byte("0") })
			var syntax *SyntaxError
			require.True(t, errors.As(err, &syntax))
			assert.Equal(t, f.want, *syntax)
			assertText(t, f.body, e)
		})
	}
}

func TestWhereEditsMeet(t *testing.T) {
	const body = `{"a":1,"p":{"seed":1},"b":2}`
	nested := func(raw string) func(t *testing.T, e *Edit) {
		return func(t *testing.T, e *Edit) {
			require.NoError(t, e.ReplaceNested("p", "seed", func(int, Value) []byte { return []byte(raw) }))
		}
	}
	replace := func(raw string) func(t *testing.T, e *Edit) {
		return func(t *testing.T, e *Edit) { require.True(t, e.Replace("p", []byte(raw))) }
	}
	cut := func(_ *testing.T, e *Edit) { e.Cut("p") }
	for name, f := range map[string]struct {
		edits []func(t *testing.T, e *Edit)
		want  string
	}{
		"a later Replace wins":                   {[]func(*testing.T, *Edit){replace("7"), replace("8")}, `{"a":1,"p":8,"b":2}`},
		"a later ReplaceNested wins":             {[]func(*testing.T, *Edit){nested("7"), nested("8")}, `{"a":1,"p":{"seed":8},"b":2}`},
		"Replace wins over earlier nested":       {[]func(*testing.T, *Edit){nested("7"), replace("8")}, `{"a":1,"p":8,"b":2}`},
		"Replace wins over later nested":         {[]func(*testing.T, *Edit){replace("8"), nested("7")}, `{"a":1,"p":8,"b":2}`},
		"Cut wins over what comes before":        {[]func(*testing.T, *Edit){replace("8"), nested("7"), cut}, `{"a":1,"b":2}`},
		"Cut wins over what comes after":         {[]func(*testing.T, *Edit){cut, replace("8"), nested("7")}, `{"a":1,"b":2}`},
		"nested ones after a Replace and before": {[]func(*testing.T, *Edit){nested("6"), replace("8"), nested("7"), replace("9")}, `{"a":1,"p":9,"b":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			e := editOf(t, body)
			for _, edit := range f.edits {
				edit(t, e)
			}
			assertText(t, f.want, e)
		})
	}
	t.Run("a payload's member wins over all", func(t *testing.T) {
		e := editOf(t, body)
		require.True(t, e.Replace("p", []byte("8")))
		assertText(t, `{"p":0,"a":1,"b":2}`, e, Member{"p", []byte("0")})
	})
}

func TestEditsComeInAnyOrder(t *testing.T) {
	e := editOf(t, `{"a":1,"b":2,"c":{"x":3},"d":4,"e":5}`)
	require.True(t, e.Replace("e", []byte(`"E"`)))
	require.NoError(t, e.ReplaceNested("c", "x", func(int, Value) []byte { return []byte(`"X"`) }))
	e.Cut("d")
	require.True(t, e.Replace("a", []byte(`"A"`)))
	assertText(t, `{"a":"A","b":2,"c":{"x":"X"},"e":"E"}`, e)
}

func TestClonesDoNotShowEachOthersEdits(t *testing.T) {
	base := editOf(t, `{"a":1,"b":2,"c":3,"d":4}`)
	base.Cut("d") // one by one, so that the lists have spare room that clones could share
	base.Cut("x")
	base.Cut("y")
	base.Replace("a", []byte("10"))
	base.Replace("a", []byte("11"))
	base.Replace("a", []byte("12"))
	one, two := base.Clone(), base.Clone()
	base.Cut("c")
	base.Replace("b", []byte("0"))
	one.Cut("a")
	one.Replace("c", []byte("1"))
	two.Cut("b")
	two.Replace("c", []byte("2"))
	assertText(t, `{"a":12,"b":0}`, base)
	assertText(t, `{"b":2,"c":1}`, one)
	assertText(t, `{"a":12,"c":2}`, two)
}

func TestEditsLeaveTheBodyAsItWas(t *testing.T) {
	const text = `{"a":1,"rid":"x","p":{"seed":1}}`
	body := []byte(text)
	doc, err := Scan(body)
	require.NoError(t, err)
	e := doc.Edit()
	e.Cut("a")
	e.Replace("p", []byte("{}"))
	e.Payload(Member{"rid", []byte("1")}).Bytes()
	assert.Equal(t, text, string(body))
}
