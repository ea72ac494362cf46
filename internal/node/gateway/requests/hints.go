package requests

import (
	"maps"
	"net/textproto"
	"sync"
)

// hints brings informational answers (1xx) of an attempt to the client.
type hints struct {
	to *answerWriter

	mu sync.Mutex
	// over says that the client gets no more: the answer has come, or it does not know any.
	over bool
}

// end is called when the answer has come.
func (i *hints) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
}

// pass brings one answer.
func (i *hints) pass(code int, header textproto.MIMEHeader) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil
	}
	h := i.to.Header()
	before := h.Clone()
	maps.Copy(h, header)
	i.to.WriteHeader(code)
	clear(h)
	maps.Copy(h, before)
	return nil
}
