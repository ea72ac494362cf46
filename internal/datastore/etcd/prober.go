package etcd

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kedge-dev/kedge/internal/cluster/pki"
)

// prober asks members whether they run.
type prober struct{ http *http.Client }

func newProber(files pki.EtcdFiles) *prober {
	p := &prober{&http.Client{Timeout: 2 * time.Second}}
	// Tests have no files, and nobody to ask.
	if config, err := peerTLS(files).ClientConfig(); err == nil {
		p.http.Transport = &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	}
	return p
}

// alive returns which of the members answer.
func (p *prober) alive(ctx context.Context, members []member) map[uint64]bool {
	var mu sync.Mutex
	var asked sync.WaitGroup
	alive := map[uint64]bool{}
	for _, one := range members {
		asked.Go(func() {
			if p.answers(ctx, one.url) {
				mu.Lock()
				defer mu.Unlock()
				alive[one.id] = true
			}
		})
	}
	asked.Wait()
	return alive
}

func (p *prober) answers(ctx context.Context, peer string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, peer+"/version", nil)
	if err != nil {
		return false
	}
	response, err := p.http.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
