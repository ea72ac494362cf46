package bench

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/kedge-dev/kedge/tests/harness"
)

const (
	datastoresFile = "build/bench/datastores.json"
	// perNamespace is how many objects a namespace has. A page of a list has as many.
	perNamespace = 500
	// createWorkers is how many goroutines make objects. Each waits for the disk, which may be slow.
	createWorkers = 32
	// datastoreTime is how long each kind of request is sent.
	datastoreTime = 5 * time.Second
	// datastoreRest is the time from the first list after a start to the reading of memory.
	datastoreRest = 10 * time.Second
)

// datastore is a datastore that a server can have by itself.
type datastore struct {
	name string
	args []string
}

// datastores are compared with the first of them.
var datastores = []datastore{{name: "SQLite"}, {"etcd", []string{"--cluster-init"}}}

// datastoreSizes are the numbers of objects at which a server is measured.
var datastoreSizes = []int{1000, 10_000, 100_000}

// datastoreStep has the results for a server with a number of objects.
type datastoreStep struct {
	Objects int `json:"objects"`
	// These are requests per second. Creates is for making the objects.
	Creates float64 `json:"creates"`
	Updates float64 `json:"updates"`
	Gets    float64 `json:"gets"`
	Lists   float64 `json:"lists"`
	// ListAll is the time in seconds to list all objects, page by page.
	ListAll float64 `json:"listAllSeconds"`
	// Watch is the 99th percentile of the watch's latency, in seconds.
	Watch float64 `json:"watchP99Seconds"`
	// Readyz and FirstList are the seconds from a start on the data to /readyz and to the end of the
	// first list.
	Readyz    float64 `json:"readyzSeconds"`
	FirstList float64 `json:"firstListSeconds"`
	// PSS and Anonymous are the server's memory in bytes after that.
	PSS       float64 `json:"pss"`
	Anonymous float64 `json:"anonymous"`
	// Written is how many bytes were written to the server's disk until then.
	Written float64 `json:"written"`
}

var datastoreFigures = []figure[datastoreStep]{
	{"creates a second", 1, func(s datastoreStep) float64 { return s.Creates }},
	{"updates a second", 1, func(s datastoreStep) float64 { return s.Updates }},
	{"gets a second", 1, func(s datastoreStep) float64 { return s.Gets }},
	{"lists of 500 a second", 1, func(s datastoreStep) float64 { return s.Lists }},
	{"list of all, s", 1, func(s datastoreStep) float64 { return s.ListAll }},
	{"watch latency p99, ms", 1e-3, func(s datastoreStep) float64 { return s.Watch }},
	{"warm start to /readyz, s", 1, func(s datastoreStep) float64 { return s.Readyz }},
	{"warm start to a list of all, s", 1, func(s datastoreStep) float64 { return s.FirstList }},
	{"PSS, MiB", mebibyte, func(s datastoreStep) float64 { return s.PSS }},
	{"anonymous, MiB", mebibyte, func(s datastoreStep) float64 { return s.Anonymous }},
	{"written by then, MiB", mebibyte, func(s datastoreStep) float64 { return s.Written }},
}

// datastoreServer is a server whose datastore is measured.
type datastoreServer struct {
	*harness.Server
	disk           *harness.Disk
	writtenAtStart float64
	client         kubernetes.Interface
	objects        int
}

// step makes objects until there are count, and measures the server.
func (s *datastoreServer) step(ctx context.Context, count int) (step datastoreStep, err error) {
	step.Objects = count
	if step.Creates, err = s.create(ctx, count); err != nil {
		return step, fmt.Errorf("create objects: %w", err)
	}
	for _, requests := range []struct {
		rate *float64
		one  func(n int) error
	}{
		{&step.Updates, func(n int) error { return s.update(ctx, n) }},
		{&step.Gets, func(n int) error {
			meta := objectMeta(s.any(n))
			_, err := s.client.CoreV1().ConfigMaps(meta.Namespace).Get(ctx, meta.Name, metav1.GetOptions{})
			return err
		}},
		{&step.Lists, func(n int) error {
			_, err := s.client.CoreV1().ConfigMaps(objectMeta(s.any(n)).Namespace).List(ctx, metav1.ListOptions{})
			return err
		}},
	} {
		if *requests.rate, err = load(loadWorkers, during(datastoreTime), requests.one); err != nil {
			return step, err
		}
	}
	var lists []float64
	for began := time.Now(); len(lists) == 0 || time.Since(began) < datastoreTime; {
		listed := time.Now()
		if err := s.listAll(ctx); err != nil {
			return step, err
		}
		lists = append(lists, time.Since(listed).Seconds())
	}
	step.ListAll = median(lists)
	if step.Watch, err = watchLatency(ctx, s.client); err != nil {
		return step, err
	}
	return step, s.restart(ctx, &step)
}

// restart measures a start on the data, and the memory after it.
func (s *datastoreServer) restart(ctx context.Context, step *datastoreStep) error {
	s.Terminate()
	began := time.Now()
	s.Start()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := waitReadyz(ctx, s.Host); err != nil {
		return fmt.Errorf("start on the same data: %w", err)
	}
	step.Readyz = time.Since(began).Seconds()
	if err := s.listAll(ctx); err != nil {
		return err
	}
	step.FirstList = time.Since(began).Seconds()
	time.Sleep(datastoreRest)
	now, err := takeSnapshot(s.Host)
	if err != nil {
		return fmt.Errorf("read processes: %w", err)
	}
	step.PSS, step.Anonymous = now.Installation.PSS, now.Installation.Anonymous
	written, err := s.disk.Written()
	step.Written = written - s.writtenAtStart
	return err
}

// create makes objects until there are count, and returns how many it made per second.
func (s *datastoreServer) create(ctx context.Context, count int) (float64, error) {
	first := s.objects
	for n := first; n < count; n += perNamespace {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: objectMeta(n).Namespace}}
		if _, err := s.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return 0, err
		}
	}
	s.objects = count
	return load(createWorkers, func(n int) bool { return first+n < count }, func(n int) error {
		object := kibibyte(objectMeta(first + n))
		_, err := s.client.CoreV1().ConfigMaps(object.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// update changes an object, whatever its version.
func (s *datastoreServer) update(ctx context.Context, n int) error {
	object := kibibyte(objectMeta(s.any(n)))
	object.Labels = map[string]string{"changed": strconv.Itoa(n)}
	_, err := s.client.CoreV1().ConfigMaps(object.Namespace).Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return nil // two at once, and one was told
	}
	return err
}

// any returns the number of the nth object in a mixed order of all objects.
func (s *datastoreServer) any(n int) int { return n * 7919 % s.objects }

// objectMeta returns the name and namespace of an object.
func objectMeta(n int) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: fmt.Sprint("bench-", n/perNamespace), Name: fmt.Sprint("object-", n)}
}

// listAll reads all objects page by page, as kubectl does.
func (s *datastoreServer) listAll(ctx context.Context) error {
	found := 0
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.client.CoreV1().ConfigMaps(metav1.NamespaceAll).List(ctx, options)
	})
	pages.PageSize = perNamespace
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(runtime.Object) error {
		found++
		return nil
	})
	if err == nil && found < s.objects {
		err = fmt.Errorf("%d are there of %d", found, s.objects)
	}
	if err != nil {
		return fmt.Errorf("list all objects: %w", err)
	}
	return nil
}

// datastoresReport has the results of servers by datastore.
type datastoresReport struct {
	origin
	// Steps has the results by the datastore's name.
	Steps map[string][]datastoreStep `json:"steps"`
}

// Table returns the values for each number of objects, and their ratios to those of the first
// datastore.
func (r *datastoresReport) Table() string {
	var text strings.Builder
	text.WriteString(r.heading())
	fmt.Fprintf(&text, "objects of 1 KiB in namespaces of %d, made by %d workers; else %d; behind each value of %s its ratio to that of %s\n\n",
		perNamespace, createWorkers, loadWorkers, datastores[1].name, datastores[0].name)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name string, cell func(step int, d datastore) (string, string)) {
		fmt.Fprintf(table, "%s\t", name)
		for step := range datastoreSizes {
			for _, d := range datastores {
				value, ratio := cell(step, d)
				fmt.Fprintf(table, "%s\t", value)
				if d.name != datastores[0].name {
					fmt.Fprintf(table, "%s\t", ratio)
				}
			}
		}
		fmt.Fprintln(table)
	}
	line("objects", func(step int, d datastore) (string, string) {
		if d.name == datastores[0].name {
			return strconv.Itoa(datastoreSizes[step]), ""
		}
		return "", ""
	})
	line("", func(_ int, d datastore) (string, string) { return d.name, "ratio" })
	for _, figure := range datastoreFigures {
		of := func(step int, d datastore) float64 { return figure.of(r.Steps[d.name][step]) }
		line(figure.name, func(step int, d datastore) (string, string) {
			return number(of(step, d)), ratio(of(step, d), of(step, datastores[0]))
		})
	}
	table.Flush()
	return text.String()
}

// write writes the results, and the table of values, into a folder.
func (r *datastoresReport) write(repository string) error {
	path := filepath.Join(repository, datastoresFile)
	head := []string{"datastore", "objects"}
	for _, figure := range datastoreFigures {
		head = append(head, figure.name)
	}
	table := [][]string{head}
	for _, d := range datastores {
		for _, step := range r.Steps[d.name] {
			line := []string{d.name, strconv.Itoa(step.Objects)}
			for _, figure := range datastoreFigures {
				line = append(line, decimal(figure.of(step)))
			}
			table = append(table, line)
		}
	}
	return errors.Join(
		writeJSON(path, r),
		writeFile(strings.TrimSuffix(path, ".json")+".csv", func(file *os.File) error { return csv.NewWriter(file).WriteAll(table) }),
	)
}
