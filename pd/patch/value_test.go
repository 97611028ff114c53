package patch

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// valueOf returns raw as it stands in a scanned body.
func valueOf(t *testing.T, raw string) Value {
	t.Helper()
	doc, err := Scan([]byte(`{ "v" : ` + raw + ` }`))
	require.NoError(t, err)
	require.Len(t, doc.members, 1)
	return doc.value(0)
}

func TestValuesHaveOnePlainType(t *testing.T) {
	for raw, f := range map[string]struct {
		kind            byte
		boolean, isBool bool
		integer         int64
		isInt           bool
		text            string
		isText          bool
	}{
		`true`:                 {kind: 't', boolean: true, isBool: true},
		`false`:                {kind: 'f', isBool: true},
		`null`:                 {kind: 'n'},
		`0`:                    {kind: '0', isInt: true},
		`-0`:                   {kind: '0', isInt: true},
		`128`:                  {kind: '0', integer: 128, isInt: true},
		`9223372036854775807`:  {kind: '0', integer: 9223372036854775807, isInt: true},
		`-9223372036854775808`: {kind: '0', integer: -9223372036854775808, isInt: true},
		`9223372036854775808`:  {kind: '0'},
		`123456789012345678901234567890`: {
			kind: '0',
		},
		`1.0`:           {kind: '0'},
		`1e2`:           {kind: '0'},
		`1E2`:           {kind: '0'},
		`"2"`:           {kind: '"', text: "2", isText: true},
		`""`:            {kind: '"', isText: true},
		`"a\"\u006e\n"`: {kind: '"', text: "a\"n\n", isText: true},
		`"\ud83d\udc4b"`: {
			kind: '"', text: "👋", isText: true,
		},
		`"a\ud800b"`: {kind: '"', text: "a�b", isText: true},
		`"true"`:     {kind: '"', text: "true", isText: true},
		`[]`:         {kind: '['},
		`{}`:         {kind: '{'},
	} {
		t.Run(raw, func(t *testing.T) {
			v := valueOf(t, raw)
			assert.Equal(t, string(f.kind), string(v.Kind()))
			boolean, isBool := v.Bool()
			assert.Equal(t, f.isBool, isBool)
			assert.Equal(t, f.boolean, boolean)
			integer, isInt := v.Int()
			assert.Equal(t, f.isInt, isInt)
			if isInt {
				assert.Equal(t, f.integer, integer)
			}
			text, isText := v.Text()
			assert.Equal(t, f.isText, isText)
			assert.Equal(t, f.text, text)
		})
	}
}

func TestNoValueHasNoType(t *testing.T) {
	var v Value
	assert.Zero(t, v.Kind())
	_, isBool := v.Bool()
	_, isInt := v.Int()
	_, isText := v.Text()
	_, isArray := v.First()
	assert.False(t, isBool || isInt || isText || isArray)
	assert.Zero(t, v.Len())
}

func TestElementsOfAnArray(t *testing.T) {
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for raw, want := range map[string][]string{
		`[]`:              nil,
		"[ \n]":           nil,
		`[1]`:             {`1`},
		`[1,2,3]`:         {`1`, `2`, `3`},
		"[ 1 ,\n-2.5e1 ]": {`1`, `-2.5e1`},
		`[true,false,null]`: {
			`true`, `false`, `null`,
		},
		`["a","b"]`:                  {`"a"`, `"b"`},
		`["a,b","]","[",",\",",""]`:  {`"a,b"`, `"]"`, `"["`, `",\","`, `""`},
		`["\\","\\\"","\\\\",1]`:     {`"\\"`, `"\\\""`, `"\\\\"`, `1`},
		`[[1,2],[],[[3],4]]`:         {`[1,2]`, `[]`, `[[3],4]`},
		`[{"a":[1,2],"b":"}]"},{} ]`: {`{"a":[1,2],"b":"}]"}`, `{}`},
		`[` + deep + `,1]`:           {deep, `1`},
		`{"a":[1,2]}`:                nil,
		`"[1,2]"`:                    nil,
		`12`:                         nil,
		`null`:                       nil,
	} {
		t.Run(raw[:min(len(raw), 40)], func(t *testing.T) {
			v := valueOf(t, raw)
			var got []string
			for i, element := range v.All() {
				assert.Len(t, got, i)
				assert.Equal(t, string(element.Raw), raw[element.Offset-v.Offset:][:len(element.Raw)])
				got = append(got, string(element.Raw))
			}
			assert.Equal(t, want, got)
			assert.Equal(t, len(want), v.Len())
			first, ok := v.First()
			assert.Equal(t, len(want) > 0, ok)
			if ok {
				assert.Equal(t, want[0], string(first.Raw))
			}
		})
	}
}

func TestNestedObjectsKeepTheirPlaceInTheBody(t *testing.T) {
	body := `{"a":[{},{"b": {"c":"x"}}]}`
	doc, err := Scan([]byte(body))
	require.NoError(t, err)
	a, _ := doc.Get("a")
	var last Value
	for _, element := range a.All() {
		last = element
	}
	object, err := last.Object()
	require.NoError(t, err)
	b, _ := object.Get("b")
	inner, err := b.Object()
	require.NoError(t, err)
	c, ok := inner.Get("c")
	require.True(t, ok)
	assert.Equal(t, `"x"`, body[c.Offset:][:len(c.Raw)])
	assert.Equal(t, `{"c":"x"}`, string(inner.Bytes()))

	edit := inner.Edit()
	assert.True(t, edit.Replace("c", []byte("1")))
	assert.Equal(t, `{"c":1}`, string(edit.Payload().Bytes()), "an edit of a nested object is one of its own text")

	edit = object.Edit()
	require.NoError(t, edit.ReplaceNested("b", "c", func(int, Value) []byte { return []byte("2") }))
	assert.Equal(t, `{"b": {"c":2}}`, string(edit.Payload().Bytes()))
}

func TestObjectRefusesWhatIsNone(t *testing.T) {
	v := valueOf(t, `[1]`)
	_, err := v.Object()
	assert.Equal(t, &SyntaxError{v.Offset, "not a JSON object"}, err)

	v = valueOf(t, manyMembers(maxMembers+1))
	_, err = v.Object()
	assert.Equal(t, &SyntaxError{v.Offset + len(manyMembers(maxMembers)) - 1, "too many members"}, err)
}
