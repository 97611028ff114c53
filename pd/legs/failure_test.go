package sglang

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestReplaceAddr(t *testing.T) {
	f := func(body, want string) {
		t.Helper()
		assert.Equal(t, want, string(replaceAddr([]byte(body), "h:899", "p-0")))
	}
	f("", "")
	f("nothing", "nothing")
	f("h:899", "p-0")
	f("lost (h:899), lost h:899/x", "lost (p-0), lost p-0/x")
	f("h:8998 is another, h:899 is not", "h:8998 is another, p-0 is not")
}
