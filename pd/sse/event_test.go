package sse_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pd/sse"
)

func TestDataIsThePayloadOfAnEvent(t *testing.T) {
	for _, c := range []struct {
		name, event string
		data        any // nil: the event has none
		single      bool
	}{
		{"one line", "data: a\n\n", "a", true},
		{"without the space", "data:a\n\n", "a", true},
		{"one space only is framing", "data:  a \n\n", " a ", true},
		{"CRLF", "data: a\r\n\r\n", "a", true},
		{"CR", "data: a\r\r", "a", true},
		{"an unfinished event", "data: a", "a", true},
		{"behind an id and a comment", ": c\nid: 1\nevent: x\ndata: a\n\n", "a", true},
		{"an empty value", "data:\n\n", "", true},
		{"a name without a colon", "data\n\n", "", true},
		{"lines are joined", "data: a\ndata: b\n\n", "a\nb", false},
		{"with CRLF too", "data: a\r\nid: 1\r\ndata: b\r\n\r\n", "a\nb", false},
		{"empty lines count", "data:\ndata:\n\n", "\n", false},
		{"a comment", ": data: a\n\n", nil, false},
		{"another name", "database: a\n\n", nil, false},
		{"a name in other letters", "Data: a\n\n", nil, false},
		{"a blank line", "\n", nil, false},
		{"nothing", "", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			event := []byte(c.event)
			data := sse.Data(event)
			start, end, ok := sse.DataSpan(event)
			assert.Equal(t, c.single, ok)
			if c.data == nil {
				assert.Nil(t, data)
				return
			}
			assert.NotNil(t, data)
			assert.Equal(t, c.data, string(data))
			if ok {
				assert.Equal(t, c.data, string(event[start:end]))
			}
		})
	}
}

func TestDataOfOneLineCannotGrowIntoTheEvent(t *testing.T) {
	event := []byte("data: a\n\n")
	_ = append(sse.Data(event), "bc"...)
	assert.Equal(t, "data: a\n\n", string(event))
}

func TestIsDoneIsTheExactPayload(t *testing.T) {
	for event, want := range map[string]bool{
		"data: [DONE]\n\n":                    true,
		"data:[DONE]\r\n\r\n":                 true,
		"id: 9\ndata: [DONE]\n\n":             true,
		"data: [DONE] \n\n":                   false,
		"data: \"[DONE]\"\n\n":                false,
		"data: {\"text\":\"[DONE]\"}\n\n":     false,
		"data: {\"text\":\"data: [DONE]\"}\n": false,
		"data: [DONE]\ndata: x\n\n":           false,
		": [DONE]\n\n":                        false,
	} {
		assert.Equal(t, want, sse.IsDone([]byte(event)), "%q", event)
	}
}
