package patch

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var accepted = map[string]string{
	"an empty object":              `{}`,
	"an ordinary body":             `{"model":"m","stream":true,"max_tokens":16,"input_ids":[1,2,3]}`,
	"white space everywhere":       " \t\r\n{ \"a\" :\n1 ,\t\"b\" : [ 1 , { } ] } \r\n",
	"duplicate names":              `{"n":1,"n":2,"\u006e":3}`,
	"duplicate names further down": `{"a":{"n":1,"n":2}}`,
	"a lone surrogate escape":      `{"\ud800":"\udc00 \ud800A"}`,
	"integers beyond 64 bits":      `{"a":9007199254740993,"b":123456789012345678901234567890}`,
	"any spelling of a number":     `{"a":1e400,"b":-0,"c":-0.00E+7}`,
	"every escape":                 `{"a":"\"\\\/\b\f\n\r\t\u00e9"}`,
	"characters beyond ASCII":      `{"é":"日本 👋","\u00e9":"�"}`,
	"a delete character":           "{\"a\":\"\x7f\"}",
	"the deepest nesting":          `{"a":` + strings.Repeat("[", 9999) + strings.Repeat("]", 9999) + `}`,
	"as many members as allowed":   manyMembers(maxMembers),
}

func manyMembers(n int) string {
	return "{" + strings.TrimSuffix(strings.Repeat(`"a":0,`, n), ",") + "}"
}

func TestScanAcceptsWhatEnginesJudgeThemselves(t *testing.T) {
	for name, body := range accepted {
		t.Run(name, func(t *testing.T) {
			doc, err := Scan([]byte(body))
			require.NoError(t, err)
			assert.Equal(t, body, string(doc.Bytes()))
		})
	}
}

var refused = map[string]struct {
	body   string
	offset int
	reason string
}{
	"an empty body":                   {"", 0, "no JSON object"},
	"white space alone":               {" \n", 2, "no JSON object"},
	"an array":                        {` [{}]`, 1, "not a JSON object"},
	"a string":                        {`"a"`, 0, "not a JSON object"},
	"a number":                        {`12`, 0, "not a JSON object"},
	"null":                            {`null`, 0, "not a JSON object"},
	"a word":                          {`abc`, 0, "invalid JSON"},
	"a byte order mark":               {"\uFEFF{}", 0, "invalid JSON"},
	"NaN":                             {`{"a":NaN}`, 5, "NaN or Infinity"},
	"Infinity":                        {`{"a":Infinity}`, 5, "NaN or Infinity"},
	"minus Infinity":                  {`{"a":-Infinity}`, 6, "NaN or Infinity"},
	"a second object":                 {`{} {}`, 3, "data after the object"},
	"a bracket too many":              {`{}}`, 2, "data after the object"},
	"a zero byte after the object":    {"{}\x00", 2, "data after the object"},
	"an object cut short":             {`{"a":1`, 6, "unexpected end"},
	"a string cut short":              {`{"a":"b`, 7, "unexpected end"},
	"a name without a value":          {`{"a"}`, 4, "invalid JSON"},
	"a comma too many":                {`{"a":1,}`, 6, "invalid JSON"},
	"a comma too few":                 {`{"a":1 "b":2}`, 7, "invalid JSON"},
	"a leading comma":                 {`{,"a":1}`, 1, "invalid JSON"},
	"a name that is no string":        {`{1:2}`, 1, "invalid JSON"},
	"a name that is an object":        {`{{}:2}`, 1, "invalid JSON"},
	"the wrong bracket":               {`{"a":1]`, 6, "invalid JSON"},
	"a single quote":                  {`{'a':1}`, 1, "invalid JSON"},
	"a comment":                       {`{/**/}`, 1, "invalid JSON"},
	"a leading zero":                  {`{"a":01}`, 6, "invalid JSON"},
	"a plus sign":                     {`{"a":+1}`, 5, "invalid JSON"},
	"an unknown escape":               {`{"a":"\x"}`, 6, "invalid JSON"},
	"a short escape":                  {`{"a":"\u12"}`, 6, "invalid JSON"},
	"a raw line feed in a string":     {"{\"a\":\"b\nc\"}", 7, "raw control character"},
	"a raw zero byte":                 {"{\"a\":\x00}", 5, "raw control character"},
	"invalid UTF-8 in a string":       {"{\"a\":\"é\xff\"}", 8, "invalid UTF-8"},
	"invalid UTF-8 in a name":         {"{\"\xc3\":1}", 2, "invalid UTF-8"},
	"a surrogate in UTF-8":            {"{\"a\":\"\xed\xa0\x80\"}", 6, "invalid UTF-8"},
	"invalid UTF-8 before other harm": {"[\xff", 1, "invalid UTF-8"},
	"nesting that is too deep":        {`{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`, 10_004, "nested too deeply"},
	"the words of the nesting error":  {`{"max depth":x}`, 13, "invalid JSON"},
	"more members than allowed":       {manyMembers(maxMembers + 1), len(manyMembers(maxMembers)) - 1, "too many members"},
}

func TestScanRefusesWithPlaceAndReason(t *testing.T) {
	for name, f := range refused {
		t.Run(name, func(t *testing.T) {
			doc, err := Scan([]byte(f.body))
			assert.Nil(t, doc)
			var syntax *SyntaxError
			require.ErrorAs(t, err, &syntax)
			assert.Equal(t, SyntaxError{f.offset, f.reason}, *syntax)
			assert.Equal(t, f.reason+" at byte "+strconv.Itoa(f.offset), err.Error())
		})
	}
}

func TestScanSurvivesDepthBombs(t *testing.T) {
	for name, body := range map[string][]byte{
		"arrays alone":        bytes.Repeat([]byte("["), 1<<20),
		"arrays in an object": append([]byte(`{"a":`), bytes.Repeat([]byte("["), 64<<20)...),
		"objects":             bytes.Repeat([]byte(`{"a":`), 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Scan(body)
			var syntax *SyntaxError
			require.ErrorAs(t, err, &syntax)
		})
	}
}

func TestScanAfterARefusalStartsAfresh(t *testing.T) {
	for _, f := range refused {
		_, err := Scan([]byte(f.body))
		require.Error(t, err)
		doc, err := Scan([]byte(`{"a":1}`))
		require.NoError(t, err)
		a, ok := doc.Get("a")
		require.True(t, ok)
		assert.Equal(t, Value{Raw: []byte("1"), Offset: 5}, a)
		_, ok = doc.Get("b")
		assert.False(t, ok)
	}
}

func TestAFinishedScanHoldsNoBody(t *testing.T) {
	for _, body := range []string{`{"a":1}`, `{"a":`, manyMembers(maxMembers)} {
		s := scanners.Get().(*scanner)
		_, _ = s.scan([]byte(body))
		s.release()
		assert.Zero(t, s.buf.Cap())
		assert.Empty(t, s.dec.UnreadBuffer())
		assert.Less(t, cap(s.members), 100)
	}
}

func TestGetFindsTheLastMemberInAnySpelling(t *testing.T) {
	for name, f := range map[string]struct {
		body, name, want string
	}{
		"one":                               {`{"a":1,"n":2}`, "n", "2"},
		"none":                              {`{"a":1}`, "n", ""},
		"none in an empty object":           {`{}`, "n", ""},
		"the last of several":               {`{"n":1,"n":{"x":2},"m":3}`, "n", `{"x":2}`},
		"an escaped spelling":               {`{"\u006e":1}`, "n", "1"},
		"an escaped spelling after a plain": {`{"n":1,"\u006E":2}`, "n", "2"},
		"null":                              {`{"n":null}`, "n", ""},
		"null after a value":                {`{"n":1,"n":null}`, "n", ""},
		"a value after null":                {`{"n":null,"n":1}`, "n", "1"},
		"the empty name":                    {`{"":1}`, "", "1"},
		"not by case":                       {`{"N":1}`, "n", ""},
		"not within a value":                {`{"a":{"n":1}}`, "n", ""},
		"not by an escape's own characters": {`{"a\nb":1}`, `a\nb`, ""},
		"not by a longer escaped name":      {`{"\u006e\u006e\u006e":1}`, "n", ""},
		"beyond ASCII":                      {`{"\u00e9":1}`, "é", "1"},
		"a surrogate pair":                  {`{"\ud83d\udc4b":1}`, "👋", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			doc, err := Scan([]byte(f.body))
			require.NoError(t, err)
			got, ok := doc.Get(f.name)
			assert.Equal(t, f.want != "", ok)
			if ok {
				assert.Equal(t, f.want, string(got.Raw))
				assert.Equal(t, f.want, f.body[got.Offset:][:len(f.want)])
			}
		})
	}
}

func TestValuesAreThePartsOfTheBodyItself(t *testing.T) {
	body := []byte(`{"a":[1,{"b":2}]}`)
	doc, err := Scan(body)
	require.NoError(t, err)
	a, _ := doc.Get("a")
	assert.Same(t, &body[a.Offset], &a.Raw[0])
	assert.Len(t, a.Raw, cap(a.Raw), "an append must not reach the bytes behind the value")
}

// addSeed leaves the long bodies out: the fuzzer would spend its time on making them shorter.
func addSeed(f *testing.F, body string, more ...any) {
	if len(body) < 1000 {
		f.Add(append([]any{[]byte(body)}, more...)...)
	}
}

// FuzzScan compares Scan with encoding/json, which accepts the same texts but for invalid UTF-8, other values than
// objects, and more members than Scan does.
func FuzzScan(f *testing.F) {
	for _, body := range accepted {
		addSeed(f, body)
	}
	for _, r := range refused {
		addSeed(f, r.body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		doc, err := Scan(body)
		require.Equal(t, before, body)
		if err != nil {
			var syntax *SyntaxError
			require.ErrorAs(t, err, &syntax)
			require.LessOrEqual(t, 0, syntax.Offset)
			require.LessOrEqual(t, syntax.Offset, len(body))
			if syntax.Reason == "too many members" {
				return
			}
		}
		object := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
		require.Equal(t, json.Valid(body) && utf8.Valid(body) && object, err == nil)
		if err != nil {
			return
		}
		var want map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &want))
		for name, raw := range want {
			got, ok := doc.Get(name)
			require.Equal(t, string(raw) != "null", ok)
			if ok {
				require.Equal(t, string(raw), string(got.Raw))
				checkElements(t, got)
			}
		}
	})
}

// checkElements compares the elements of an array with those that encoding/json finds.
func checkElements(t *testing.T, v Value) {
	var want []json.RawMessage
	if v.Kind() == '[' {
		require.NoError(t, json.Unmarshal(v.Raw, &want))
	}
	require.Equal(t, len(want), v.Len())
	n := 0
	for i, element := range v.All() {
		require.Equal(t, n, i)
		require.Equal(t, string(want[i]), string(element.Raw))
		require.Equal(t, string(v.Raw[element.Offset-v.Offset:][:len(element.Raw)]), string(element.Raw))
		n++
	}
	require.Equal(t, len(want), n)
}
