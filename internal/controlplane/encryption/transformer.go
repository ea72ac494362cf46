package encryption

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
)

// TransformerForResource implements upstream's value.ResourceTransformers. It
// returns nil for everything except Secrets, and for Secrets too if the user
// encrypts them.
func (e *Encryption) TransformerForResource(resource schema.GroupResource) value.Transformer {
	if e.cfg.Theirs != "" || resource != (schema.GroupResource{Resource: "secrets"}) {
		return nil
	}
	return current{e}
}

// current transforms with the keys that the cluster has now.
type current struct{ *Encryption }

// TransformToStorage implements value.Write.
func (c current) TransformToStorage(ctx context.Context, data []byte, of value.Context) ([]byte, error) {
	keys, err := c.load(ctx)
	if err != nil {
		return nil, err
	}
	return keys.transformer.TransformToStorage(ctx, data, of)
}

// TransformFromStorage implements value.Read.
func (c current) TransformFromStorage(ctx context.Context, data []byte, of value.Context) ([]byte, bool, error) {
	c.mu.Lock()
	keys := c.known
	c.mu.Unlock()
	if !keys.knows(data) {
		var err error
		if keys, err = c.load(ctx); err != nil {
			return nil, false, err
		}
	}
	return keys.transformer.TransformFromStorage(ctx, data, of)
}
