package pd

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOutboundHeaders(t *testing.T) {
	in := http.Header{
		"Authorization": {"Bearer client"}, "X-Request-Id": {"r1"}, "Traceparent": {"00-ab"}, "X-Unknown": {"a", "b"},
		"Content-Type": {"application/json"}, "User-Agent": {"curl"}, "Cookie": {"a=1"},
		// Of one connection.
		"Connection": {"close, X-Secret-Hop", "x-other-hop"}, "X-Secret-Hop": {"1"}, "X-Other-Hop": {"1"},
		"Keep-Alive": {"1"}, "Proxy-Connection": {"keep-alive"}, "Proxy-Authorization": {"Basic x"}, "Proxy-Authenticate": {"x"},
		"Te": {"trailers"}, "Trailer": {"X"}, "Transfer-Encoding": {"chunked"}, "Upgrade": {"h2c"},
		"Expect": {"100-continue"}, "Host": {"h"}, "Content-Length": {"5"}, "Accept-Encoding": {"gzip"},
		// Overrides of what is written into the body.
		"X-Override-Rid": {"x"}, "X-Override-Bootstrap-Host": {"x"}, "X-Override-Bootstrap-Port": {"1"}, "X-Override-Bootstrap-Room": {"1"},
		"X-Override-Routed-Dp-Rank": {"1"}, "X-Override-Disagg-Prefill-Dp-Rank": {"1"}, "x-override-rid": {"odd spelling"},
		// Not overrides of ours.
		"X-Override-Priority": {"3"}, "X-Override-Conversation-Id": {"c"},
	}
	before := in.Clone()
	assert.Equal(t, http.Header{
		"Authorization": {"Bearer client"}, "X-Request-Id": {"r1"}, "Traceparent": {"00-ab"}, "X-Unknown": {"a", "b"},
		"Content-Type": {"application/json"}, "User-Agent": {"curl"}, "Cookie": {"a=1"},
		"X-Override-Priority": {"3"}, "X-Override-Conversation-Id": {"c"},
		"Accept-Encoding": {"identity"},
	}, Outbound(in))
	assert.Equal(t, before, in, "the client's own headers stay as they were")
}

func TestOutboundNamesNoClientOfOurOwn(t *testing.T) {
	for _, in := range []http.Header{{}, nil} {
		assert.Equal(t, http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {""}}, Outbound(in))
	}
}

func TestInboundHeaders(t *testing.T) {
	in := http.Header{
		"Content-Type": {"application/json"}, "X-Engine": {"1", "2"}, "Set-Cookie": {"a", "b"}, "Date": {"now"},
		"Content-Length": {"5"}, "Transfer-Encoding": {"chunked"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"5"},
		"Content-Length ": {"1"}, "transfer-encoding ": {"chunked"}, "X Y": {"1"},
	}
	before := in.Clone()
	assert.Equal(t, http.Header{
		"Content-Type": {"application/json"}, "X-Engine": {"1", "2"}, "Set-Cookie": {"a", "b"}, "Date": {"now"},
	}, Inbound(in))
	assert.Equal(t, before, in)
	assert.Nil(t, Inbound(nil))
}
