package patch

import (
	"cmp"
	"slices"
)

// maxNested bounds the values that one Edit rewrites within members, and with them what an Edit of a batch can cost
// beside the body: each takes a few dozen bytes in every payload. It is far above any batch that an engine takes.
const maxNested = 1 << 16

// Member is a member to write into an object.
type Member struct {
	Name string // plain ASCII without a character that JSON escapes
	Raw  []byte // valid JSON; kept, so it must not change any more
}

// Edit collects changes to one object. They may be made in any order: where they meet, Cut wins over Replace, Replace
// over ReplaceNested, and a later change over an earlier one of the same kind. An Edit is not safe for concurrent use.
type Edit struct {
	doc      *Doc
	cut      []string // names
	replaced []span   // only ever appended to: clones share it, and the later of two equal spans wins
}

// span is a part of the object's text, with what is to stand in its place.
type span struct {
	start, end int
	raw        []byte
}

// Edit starts an edit without any change.
func (d *Doc) Edit() *Edit { return &Edit{doc: d} }

// Clone returns an edit with the same changes. Later changes to one do not show in the other.
func (e *Edit) Clone() *Edit {
	// Without spare capacity the clone's first change moves it to memory of its own.
	return &Edit{doc: e.doc, cut: slices.Clip(e.cut), replaced: slices.Clip(e.replaced)}
}

// Cut removes every member with one of the names.
func (e *Edit) Cut(names ...string) { e.cut = append(e.cut, names...) }

// Replace puts raw, which is valid JSON and must not change any more, in the place of the value of every member called
// name, null or not. It reports whether there is one.
func (e *Edit) Replace(name string, raw []byte) bool {
	found := false
	for i := range e.doc.members {
		if e.doc.named(i, name) {
			m := &e.doc.members[i]
			e.replaced = append(e.replaced, span{m.value, m.valueEnd, raw})
			found = true
		}
	}
	return found
}

// ReplaceNested rewrites the members called sub of the object under name, or of every object in the array under name.
// For each of them it calls raw with the object's index (0 without an array) and the present value, and puts the result,
// which is valid JSON and must not change any more, in its place; nil leaves it as it is. Null counts as an absent
// object. The error is a [*SyntaxError] at a value that is no object, or where the changes become too many; then
// nothing is changed.
func (e *Edit) ReplaceNested(name, sub string, raw func(elem int, old Value) []byte) error {
	n := nested{edit: e, sub: sub, raw: raw, replaced: e.replaced}
	for i := range e.doc.members {
		if !e.doc.named(i, name) {
			continue
		}
		value := e.doc.value(i)
		if value.Kind() != '[' {
			if err := n.replaceIn(0, value); err != nil {
				return err
			}
			continue
		}
		for elem, object := range value.All() {
			if err := n.replaceIn(elem, object); err != nil {
				return err
			}
		}
	}
	e.replaced = n.replaced
	return nil
}

// nested is one call of ReplaceNested.
type nested struct {
	edit     *Edit
	sub      string
	raw      func(elem int, old Value) []byte
	replaced []span
}

func (n *nested) replaceIn(elem int, object Value) error {
	if object.Kind() == 'n' {
		return nil
	}
	doc, err := object.Object()
	if err != nil {
		return err
	}
	for i := range doc.members {
		if !doc.named(i, n.sub) {
			continue
		}
		old := doc.value(i)
		raw := n.raw(elem, old)
		if raw == nil {
			continue
		}
		if len(n.replaced) >= maxNested {
			return &SyntaxError{old.Offset, "too many values to rewrite"}
		}
		start := old.Offset - n.edit.doc.base
		n.replaced = append(n.replaced, span{start, start + len(old.Raw), raw})
	}
	return nil
}

// Payload lays the edited object out, with the given members right after its opening brace, in that order. Every
// member of the object with the name of one of them is cut. The edit may be changed and used further.
func (e *Edit) Payload(members ...Member) *Payload {
	var room [16]span // enough for most requests, so that this list costs no allocation
	spans, empty := e.appendCuts(room[:0], members)
	spans = append(spans, e.replaced...)
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })

	src, pos := e.doc.src, e.doc.open+1
	p := &Payload{segments: make([][]byte, 0, 2*len(spans)+3)}
	p.add(src[:pos])
	p.add(prefix(members, empty))
	for i, s := range spans {
		covered := s.start < pos // by a cut, or by the replaced value around it
		overruled := i+1 < len(spans) && spans[i+1].start == s.start
		if covered || overruled {
			continue
		}
		p.add(src[pos:s.start])
		p.add(s.raw)
		pos = s.end
	}
	p.add(src[pos:])
	return p
}

// appendCuts appends the parts to cut out, and reports whether no member stays. Each part takes one comma along: the
// one after the member, or, after the last member that stays, all that separates it from those cut behind it.
func (e *Edit) appendCuts(spans []span, members []Member) (_ []span, empty bool) {
	all := e.doc.members
	if len(all) == 0 {
		return spans, true
	}
	from := all[0].name // where a cut of all members that follow starts
	kept := len(spans)  // the cuts before the last member that stays
	empty = true
	for i := range all {
		switch {
		case !e.isCut(i, members):
			from, kept, empty = all[i].valueEnd, len(spans), false
		case i+1 < len(all):
			spans = append(spans, span{start: all[i].name, end: all[i+1].name})
		}
	}
	if end := all[len(all)-1].valueEnd; from < end {
		spans = append(spans[:kept], span{start: from, end: end})
	}
	return spans, empty
}

func (e *Edit) isCut(i int, members []Member) bool {
	for _, name := range e.cut {
		if e.doc.named(i, name) {
			return true
		}
	}
	for _, m := range members {
		if e.doc.named(i, m.Name) {
			return true
		}
	}
	return false
}

// prefix spells members as they stand after an opening brace; last says that no other member follows.
func prefix(members []Member, last bool) []byte {
	size := 0
	for _, m := range members {
		size += len(`"":,`) + len(m.Name) + len(m.Raw)
	}
	b := make([]byte, 0, size)
	for i, m := range members {
		b = append(b, '"')
		b = append(b, m.Name...)
		b = append(b, `":`...)
		b = append(b, m.Raw...)
		if !last || i+1 < len(members) {
			b = append(b, ',')
		}
	}
	return b
}
