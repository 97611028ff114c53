package discovery

// trouble is what is wrong with a source at present. It is Run's.
type trouble struct {
	kind string // what makes one failure another one; empty while nothing is wrong
}

// now passes what is wrong, nil for nothing, to report if its kind is another than
// before.
func (t *trouble) now(err error, kind string, report func(error)) {
	another := kind != t.kind
	t.kind = kind
	if another && report != nil {
		report(err)
	}
}
