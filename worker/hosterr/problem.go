package hosterr

import "sync"

// Problem is the present reason why a facility of the host, such as its firewall, does not work. The zero value means
// that the facility works. A Problem is safe for concurrent use.
type Problem struct {
	mu   sync.Mutex
	text string
}

// Set records why the facility does not work, or nil if it works. It reports whether the facility has stopped working
// or works again; a change of the reason alone does not count.
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

// Get returns the reason, or "" if the facility works.
func (p *Problem) Get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}
