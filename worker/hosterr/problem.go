package hosterr

import "sync"

// Problem is the present reason why a part of the host does not work. The zero value is: it works. It is safe for
// concurrent use.
type Problem struct {
	mu   sync.Mutex
	text string
}

// Set records why the part does not work, nil if it does, and reports whether that changed between a problem and none.
func (p *Problem) Set(err error) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed = (p.text == "") != (text == "")
	p.text = text
	return changed
}

// Get returns the reason, "" if the part works.
func (p *Problem) Get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}
