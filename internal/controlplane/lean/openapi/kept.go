package openapi

import (
	"sync"
	"time"
)

// keepTime is how long a value is kept after its last use.
const keepTime = 5 * time.Minute

// kept is a value that is forgotten some minutes after its last use. Until there
// is a value, it costs nothing.
type kept[T any] struct {
	mu     sync.Mutex
	value  *T
	forget *time.Timer
}

// get returns the value, or nil if there is none.
func (k *kept[T]) get() *T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value != nil {
		k.forget.Reset(keepTime)
	}
	return k.value
}

func (k *kept[T]) put(value *T) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.forget != nil {
		k.forget.Stop()
	}
	k.value, k.forget = value, time.AfterFunc(keepTime, k.drop)
}

func (k *kept[T]) drop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value != nil {
		k.forget.Stop()
	}
	k.value, k.forget = nil, nil
}
