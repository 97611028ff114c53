package simengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fields are the members of a JSON object by their exact names; of two members
// with one name the last counts.
type fields map[string]json.RawMessage

// decodeFields reads a request body.
func decodeFields(body []byte) (fields, error) {
	var f fields
	if !utf8.Valid(body) {
		return nil, fmt.Errorf("str is not valid UTF-8: surrogates not allowed")
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, fmt.Errorf("input should be an object")
	}
	return f, nil
}

// has reports whether the member is there and not null.
func (f fields) has(name string) bool { return !isNull(f[name]) }

func isNull(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null"))
}

func isList(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '[' }

// The readers below coerce as a lax pydantic model does: "2" and 2.0 are the
// integer 2, "true" and 1 are true. An absent or null member gives the default.

func (f fields) integer(name string, otherwise int) (int, error) {
	if !f.has(name) {
		return otherwise, nil
	}
	n, err := laxInt(name, f[name])
	if err != nil {
		return 0, err
	}
	return int(min(max(n, math.MinInt32), math.MaxInt32)), nil
}

func (f fields) boolean(name string) (bool, error) {
	if !f.has(name) {
		return false, nil
	}
	switch strings.ToLower(strings.Trim(string(f[name]), `"`)) {
	case "true", "1", "1.0", "yes", "on", "t", "y":
		return true, nil
	case "false", "0", "0.0", "no", "off", "f", "n":
		return false, nil
	}
	return false, &fieldError{name, "bool_parsing", "Input should be a valid boolean, unable to interpret input", f[name]}
}

func (f fields) text(name string) (string, error) {
	if !f.has(name) {
		return "", nil
	}
	var s string
	if err := json.Unmarshal(f[name], &s); err != nil {
		return "", &fieldError{name, "string_type", "Input should be a valid string", f[name]}
	}
	return s, nil
}

func laxInt(name string, raw json.RawMessage) (int64, error) {
	s := strings.Trim(string(raw), `"`)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n, nil
	}
	if x, err := strconv.ParseFloat(s, 64); err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<62 {
		return int64(x), nil
	}
	message := "Input should be a valid integer"
	if raw[0] == '"' {
		message += ", unable to parse string as an integer"
	}
	return 0, &fieldError{name, "int_parsing", message, raw}
}

// fieldError is a member of the wrong type, answered as pydantic words it.
type fieldError struct {
	field, kind, message string
	input                json.RawMessage
}

func (e *fieldError) Error() string { return e.field + ": " + e.message }

// details are the entries of the validation error, in Python's notation.
func (e *fieldError) details() []string {
	input := strings.ReplaceAll(string(e.input), `"`, "'")
	entry := func(kind, loc, message string) string {
		return fmt.Sprintf("{'type': '%s', 'loc': (%s), 'msg': '%s', 'input': %s}", kind, loc, message, input)
	}
	if e.field == "bootstrap_room" {
		return []string{
			entry("list_type", "'body', 'bootstrap_room', 'list[nullable[int]]'", "Input should be a valid list"),
			entry(e.kind, "'body', 'bootstrap_room', 'int'", e.message),
		}
	}
	return []string{entry(e.kind, "'body', '"+e.field+"'", e.message)}
}

// Room is a bootstrap room in decimal, as it stands in bodies: engines take any
// integer of 64 bits, signed or not.
type Room string

// Int64 is the room as a number; 0 if it is absent or does not fit.
func (r Room) Int64() int64 {
	n, err := strconv.ParseInt(string(r), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (r Room) negative() bool { return strings.HasPrefix(string(r), "-") }

// add is room + i, the room of item i of a batch with one room.
func (r Room) add(i int) Room {
	n, ok := new(big.Int).SetString(string(r), 10)
	if !ok || i == 0 {
		return r
	}
	return Room(n.Add(n, big.NewInt(int64(i))).String())
}

// rank is room modulo the number of ranks, never negative.
func (r Room) rank(size int) int {
	if size == 1 {
		return 0
	}
	n, ok := new(big.Int).SetString(string(r), 10)
	if !ok {
		return 0
	}
	return int(n.Mod(n, big.NewInt(int64(size))).Int64())
}

func parseRoom(raw json.RawMessage) (Room, error) {
	s := strings.Trim(string(raw), `"`)
	if n, err := strconv.ParseUint(s, 10, 64); err == nil {
		return Room(strconv.FormatUint(n, 10)), nil
	}
	n, err := laxInt("bootstrap_room", raw)
	if err != nil {
		return "", err
	}
	return Room(strconv.FormatInt(n, 10)), nil
}
