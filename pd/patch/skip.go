package patch

import "bytes"

// The functions of this file walk over JSON that the decoder has found valid, so they need not look at everything.
// They do not recurse, and stay within the text whatever it holds.

// stops marks the bytes at which a walk through an array or an object has something to do.
var stops = [256]bool{'"': true, '[': true, ']': true, '{': true, '}': true, ',': true}

// countElements returns the number of elements of the array that b holds.
func countElements(b []byte) int {
	if first := skipSeparators(b, 1); first >= len(b) || b[first] == ']' {
		return 0
	}
	if isFlat(b[1:]) {
		return bytes.Count(b, []byte{','}) + 1
	}
	count, depth := 1, 0
	for i := 0; i < len(b); i++ {
		if !stops[b[i]] {
			continue
		}
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case ',':
			if depth == 1 {
				count++
			}
		}
	}
	return count
}

// isFlat reports whether every comma in b separates two elements of the array around it, as in a long array of token
// ids. An object with a comma has names, and thus quotes.
func isFlat(b []byte) bool {
	return bytes.IndexByte(b, '"') < 0 && bytes.IndexByte(b, '[') < 0
}

// skipSeparators returns the place of the first byte from i on that is neither white space nor a comma.
func skipSeparators(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t' || b[i] == ',') {
		i++
	}
	return i
}

// skipValue returns the place after the value that starts at i, and i itself if none does.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return i
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '[', '{':
		return skipNested(b, i)
	default:
		for i < len(b) && !stops[b[i]] && b[i] > ' ' {
			i++
		}
		return i
	}
}

// skipNested returns the place after the array or object that starts at i.
func skipNested(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		if !stops[b[i]] {
			continue
		}
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '[', '{':
			depth++
		case ']', '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(b)
}

// skipString returns the place after the string that starts at i.
func skipString(b []byte, i int) int {
	end := i + 1
	for {
		quote := bytes.IndexByte(b[end:], '"')
		if quote < 0 {
			return len(b)
		}
		end += quote + 1
		// The quote ends the string unless an odd number of backslashes stands before it.
		start := end - 1
		for start > i+1 && b[start-1] == '\\' {
			start--
		}
		if (end-1-start)%2 == 0 {
			return end
		}
	}
}
