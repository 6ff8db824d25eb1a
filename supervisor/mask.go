package supervisor

import (
	"bytes"
	"slices"
)

// leastLine is the length, in bytes, from which a line of a secret's value is masked by itself.
const leastLine = 8

// patterns are the texts that are masked in output, as the automaton of Aho and Corasick: the time for a byte of output
// does not depend on the number and the length of the texts. A search for each text would take minutes for a page of
// output, if it nearly matches many long texts.
type patterns struct {
	nodes []node     // the first one is the root
	first [256]int32 // the children of the root, by their byte; 0: none
}

// node stands for a beginning of one or more texts. Its links are indexes of nodes; 0 is the root, or none.
type node struct {
	child, sibling int32 // the beginnings that are longer by one byte
	fail           int32 // the longest other beginning that this one ends with
	depth          int32 // length of the beginning
	text           int32 // length of the longest text that the beginning ends with; 0: none
	last           byte  // the beginning's last byte
}

// patternsOf returns the texts to mask for the given values: each value without its trailing newlines, and each of its
// lines that is long enough. It returns nil if there is nothing to mask.
func patternsOf(values ...[]byte) *patterns {
	var texts [][]byte
	for _, value := range values {
		whole := bytes.TrimRight(value, "\r\n")
		texts = append(texts, whole)
		if !bytes.ContainsRune(whole, '\n') {
			continue
		}
		for line := range bytes.Lines(whole) {
			if line = bytes.TrimRight(line, "\r\n"); len(line) >= leastLine {
				texts = append(texts, line)
			}
		}
	}
	most := 1
	for _, text := range texts {
		most += len(text)
	}
	m := &patterns{nodes: make([]node, 1, most)}
	for _, text := range texts {
		m.add(text)
	}
	if len(m.nodes) == 1 {
		return nil
	}
	m.link()
	return m
}

func (m *patterns) add(text []byte) {
	at := int32(0)
	for _, b := range text {
		next := m.child(at, b)
		if next == 0 {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, node{sibling: m.nodes[at].child, depth: m.nodes[at].depth + 1, last: b})
			m.nodes[at].child = next
			if at == 0 {
				m.first[b] = next
			}
		}
		at = next
	}
	m.nodes[at].text = m.nodes[at].depth
}

// child returns the beginning that is longer by the byte b; 0: none.
func (m *patterns) child(at int32, b byte) int32 {
	if at == 0 {
		return m.first[b]
	}
	next := m.nodes[at].child
	for next != 0 && m.nodes[next].last != b {
		next = m.nodes[next].sibling
	}
	return next
}

// link sets the links fail, those of shorter beginnings first.
func (m *patterns) link() {
	queue := make([]int32, 1, len(m.nodes))
	for i := 0; i < len(queue); i++ {
		at := queue[i]
		for next := m.nodes[at].child; next != 0; next = m.nodes[next].sibling {
			n := &m.nodes[next]
			if at != 0 {
				n.fail = m.step(m.nodes[at].fail, n.last)
			}
			n.text = max(n.text, m.nodes[n.fail].text)
			queue = append(queue, next)
		}
	}
}

// step returns the longest beginning that the output ends with after the byte b, if it ended with at before.
func (m *patterns) step(at int32, b byte) int32 {
	for {
		next := m.child(at, b)
		if next != 0 || at == 0 {
			return next
		}
		at = m.nodes[at].fail
	}
}

// open returns how many bytes at the end of the output may become a text when more bytes follow.
func (m *patterns) open(at int32) int {
	for m.nodes[at].child == 0 {
		at = m.nodes[at].fail
	}
	return int(m.nodes[at].depth)
}

// masker masks one stream. It replaces each byte that belongs to an occurrence of a text by an asterisk. It holds bytes
// back only while they may be the beginning of a text.
type masker struct {
	*patterns
	at   int32   // the longest beginning that the output ends with
	held []byte  // the bytes from the first position at which a text may have begun
	ends []int32 // for each held byte, the length of the longest text that ends with it; 0: none
}

// masker returns a masker for one stream, or nil if there is nothing to mask.
func (m *patterns) masker() *masker {
	if m == nil {
		return nil
	}
	return &masker{patterns: m}
}

// next takes more bytes of the stream, and returns the masked bytes that can be stored now. If end is true, no more
// bytes follow, and next returns all bytes that it has held back. If m is nil, next returns p.
func (m *masker) next(p []byte, end bool) []byte {
	if m == nil {
		return p
	}
	raw, ends := append(m.held, p...), slices.Grow(m.ends, len(p))
	for _, b := range p {
		m.at = m.step(m.at, b)
		ends = append(ends, m.nodes[m.at].text)
	}
	hold := len(raw)
	if !end {
		hold -= m.open(m.at)
	}
	masked := int32(0) // how many bytes up to this one belong to a text
	for i, length := range slices.Backward(ends) {
		if masked = max(masked-1, length); masked > 0 && i < hold {
			raw[i] = '*'
		}
	}
	m.held, m.ends = slices.Clone(raw[hold:]), slices.Clone(ends[hold:])
	return raw[:hold]
}
