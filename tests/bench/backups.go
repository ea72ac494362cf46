package bench

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kedge-dev/kedge/internal/testutil/s3"
)

// bucketAddress is where a host reaches the bucket of its backup.
const bucketAddress = "127.0.0.1:9443"

// backupPair compares a server without a backup with one that has a backup in S3.
func backupPair(writes int) pair {
	const less, more = "without a backup", "with a backup"
	p := pair{
		less: less, more: more, about: "the backup is in S3", file: "build/bench/backup.json", writes: writes, bucket: &countedBucket{},
		args:      map[string][]string{more: {"--backup=s3://" + bucketAddress + "/backups/one", "--s3-insecure", "--s3-access-key=user", "--s3-secret-key=secret"}},
		anonymous: "≤ 2",
	}
	if writes > 0 {
		p.file, p.anonymous, p.cpu = "build/bench/backup-writes.json", "≤ 4", "≤ 3"
	}
	p.begin = func(i *installation) error {
		p.bucket.serve(i)
		return i.host.Kedge(i.ctx, "backup", "key").Run()
	}
	return p
}

// countedBucket is S3 in this process, which counts.
type countedBucket struct {
	mu sync.Mutex
	// store is a new one in each run.
	store *s3.Server
	// counting is true during the idle times. requests are by method. runs is how often there was an idle time.
	counting bool
	requests map[string]int
	bytes    int64
	runs     int
}

// serve lets an installation reach the bucket, which is empty.
func (b *countedBucket) serve(i *installation) {
	b.mu.Lock()
	b.store = &s3.Server{Bucket: "backups", AccessKey: "user"}
	b.mu.Unlock()
	server := &http.Server{Handler: b}
	listener := i.host.Listen(bucketAddress)
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(i.ctx, func() { server.Close() })
}

// count begins or ends an idle time.
func (b *countedBucket) count(counting bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counting = counting
	if counting {
		b.runs++
	}
}

// ServeHTTP implements http.Handler.
func (b *countedBucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	if b.counting {
		if b.requests == nil {
			b.requests = map[string]int{}
		}
		b.requests[r.Method]++
		b.bytes += max(r.ContentLength, 0)
	}
	store := b.store
	b.mu.Unlock()
	store.ServeHTTP(w, r)
}

// summary says what one idle time means for a day.
func (b *countedBucket) summary(idle time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var requests []string
	days := max(idle.Hours()/24*float64(b.runs), 1e-9)
	for _, method := range []string{http.MethodPut, http.MethodGet, http.MethodDelete} {
		requests = append(requests, fmt.Sprintf("%.0f %s", float64(b.requests[method])/days, method))
	}
	return fmt.Sprintf("to S3, for a day like this time: %s; %.1f MiB", strings.Join(requests, ", "), float64(b.bytes)/mebibyte/days)
}

// writeSteadily changes objects so many times a second until ctx ends.
func writeSteadily(ctx context.Context, client kubernetes.Interface, rate int) error {
	const objects = 10
	api := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for n := range objects {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("written-", n)}, Data: map[string]string{"text": strings.Repeat("x", 500)}}
		if _, err := api.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create object: %w", err)
		}
	}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	failed := make(chan error, 1)
	var writing sync.WaitGroup
	defer writing.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
		}
		writing.Go(func() {
			patch := fmt.Appendf(nil, `{"data":{"number":"%d"}}`, n)
			_, err := api.Patch(ctx, fmt.Sprint("written-", n%objects), types.MergePatchType, patch, metav1.PatchOptions{})
			if err != nil && ctx.Err() == nil {
				select {
				case failed <- fmt.Errorf("write: %w", err):
				default:
				}
			}
		})
	}
}

// The file in the volume of 1 GiB, and what of it changes.
const (
	volumeFile   = "900M"
	volumeChange = "9M"
)

// The two that back up a volume.
const (
	volumeByKedge = "kedge"
	volumeByKopia = "kopia"
)

// volumeResult is what a backup of a volume took: seconds, and bytes in its place.
type volumeResult struct {
	First      float64 `json:"firstSeconds"`
	FirstBytes float64 `json:"firstBytes"`
	Again      float64 `json:"againSeconds"`
	AgainBytes float64 `json:"againBytes"`
}

// volumeReport has the results of both.
type volumeReport struct {
	origin
	Results map[string][]volumeResult `json:"results"`
}

func volumeColumns() []figure[volumeResult] {
	return []figure[volumeResult]{
		{"first, s", 1, func(r volumeResult) float64 { return r.First }},
		{"MiB", mebibyte, func(r volumeResult) float64 { return r.FirstBytes }},
		{"1 % changed, s", 1, func(r volumeResult) float64 { return r.Again }},
		{"MiB", mebibyte, func(r volumeResult) float64 { return r.AgainBytes }},
	}
}

// Table returns the results as text.
func (r *volumeReport) Table() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%sa volume of 1 GiB with a file of %s, and again after %s of it have changed; behind each value its ratio to kopia's\n\n", r.heading(), volumeFile, volumeChange)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	compare(table, "", []string{volumeByKopia, volumeByKedge}, volumeColumns(), r.Results)
	table.Flush()
	return text.String()
}
