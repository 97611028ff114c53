package router

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/pd"
)

// lock is what a client's key must fit. It keeps a digest and not the key. The
// zero value is open.
type lock struct {
	closed bool
	want   [sha256.Size]byte
}

func newLock(key string) lock {
	return lock{closed: key != "", want: sha256.Sum256([]byte(key))}
}

// opens reports whether a request has the key, or none is asked for. How long
// that takes says nothing about the key. Two Authorization headers open nothing:
// whoever else reads the request may believe the other one.
func (l lock) opens(h *fasthttp.RequestHeader) bool {
	if !l.closed {
		return true
	}
	values := h.PeekAll(fiber.HeaderAuthorization)
	if len(values) != 1 {
		return false
	}
	scheme, key, _ := bytes.Cut(values[0], []byte(" "))
	if !bytes.EqualFold(scheme, []byte("Bearer")) {
		return false
	}
	got := sha256.Sum256(bytes.TrimLeft(key, " "))
	return subtle.ConstantTimeCompare(got[:], l.want[:]) == 1
}

// route is public for those who have the key.
func (a *App) route(name string, sh shape, h handler) fiber.Handler {
	return a.public(name, sh, func(v *visit) error {
		if !a.lock.opens(&v.c.Request().Header) {
			return errNoKey()
		}
		return h(v)
	})
}

// authorization is the client's Authorization as far as it is for the engines.
// With a key of the router's own it is for the router alone.
func (v *visit) authorization() string {
	if v.app.lock.closed {
		return ""
	}
	return string(v.c.Request().Header.Peek(fiber.HeaderAuthorization))
}

func errNoKey() *pd.Error {
	return &pd.Error{
		Stage: pd.StageRequest, Kind: pd.Invalid, Status: http.StatusUnauthorized, Code: "invalid_api_key",
		Message: "this needs the router's key, as Authorization: Bearer KEY",
		Header:  http.Header{fiber.HeaderWWWAuthenticate: {"Bearer"}},
	}
}
