package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"

	"github.com/tandem-pd/tandem/pd"
)

// switchPath is where engines take the order to switch their role.
const switchPath = "/pd_role_switch"

// What is taken of an engine's answer to it, in bytes: at most so much, and a
// message no longer than that.
const (
	maxAnswer  = 64 << 10
	maxMessage = 512
)

// EngineRefusedError is an engine's answer that its role has not changed.
type EngineRefusedError struct {
	Status  int
	Message string // the engine's, cut short; may be empty
	// SafeToRestore is whether the engine says that it can go on as it was; nil where
	// it says nothing.
	SafeToRestore *bool
}

// Error is the engine's message.
func (e *EngineRefusedError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the engine answered with status %d", e.Status)
	}
	return fmt.Sprintf("the engine answered with status %d: %s", e.Status, e.Message)
}

// restores reports whether the engine says that it can go on as it was.
func (e *EngineRefusedError) restores() bool { return e.SafeToRestore != nil && *e.SafeToRestore }

// busy reports whether the engine can go on, and is merely not idle: it says so in
// words alone.
func (e *EngineRefusedError) busy() bool {
	return e.restores() && strings.Contains(strings.ToLower(e.Message), "not idle")
}

// took reports whether the engine has taken the order as one: it knows of such, and
// takes them from us.
func (e *EngineRefusedError) took() bool {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return e.SafeToRestore != nil
	default:
		return true
	}
}

// switchBody is what an engine is sent.
func switchBody(to Switch) ([]byte, error) {
	if to.Role != pd.Prefill && to.Role != pd.Decode {
		return nil, ErrBadSwitch
	}
	fields := make(map[string]any, len(to.Extra)+1)
	for name, value := range maps.All(to.Extra) {
		fields[name] = value
	}
	fields["new_role"] = to.Role.String()
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, errors.New("a field for the engine is no JSON")
	}
	return body, nil
}

// switchAnswer is the part of an engine's answer that is read.
type switchAnswer struct {
	Success *bool  `json:"success"`
	Message string `json:"message"`
	NewRole string `json:"new_role"`
	Safe    *bool  `json:"safe_to_restore"`
}

// tellRole has an engine switch its role, and returns what it says to that. The
// errors are [ErrUnreached], [ErrNoAnswer] and [*EngineRefusedError].
func tellRole(ctx context.Context, rt http.RoundTripper, w *pd.Worker, to pd.Role, body []byte) (message string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+switchPath, bytes.NewReader(body))
	if err != nil {
		return "", ErrUnreached
	}
	req.Header.Set("Content-Type", "application/json")
	w.Authorize(req.Header)
	resp, err := rt.RoundTrip(req)
	if op, dialled := errors.AsType[*net.OpError](err); dialled && op.Op == "dial" {
		return "", ErrUnreached
	}
	if err != nil {
		return "", ErrNoAnswer
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", ErrNoAnswer
	}
	return judge(to, resp.StatusCode, text)
}

// judge is what an engine's answer means. A good one that does not say that the
// engine has the role is none.
func judge(to pd.Role, status int, text []byte) (message string, err error) {
	var answer switchAnswer
	err = json.Unmarshal(text, &answer)
	if _, odd := errors.AsType[*json.UnmarshalTypeError](err); odd {
		err = nil // one field, and the others are there
	}
	message = cut(answer.Message)
	says := func(success bool) bool { return answer.Success != nil && *answer.Success == success }
	switch {
	case status/100 != 2, err == nil && says(false):
		return "", &EngineRefusedError{status, message, answer.Safe}
	case err != nil, !says(true), answer.NewRole != "" && answer.NewRole != to.String():
		return "", ErrNoAnswer
	default:
		return message, nil
	}
}

// cut bounds an engine's message.
func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "…"
}
