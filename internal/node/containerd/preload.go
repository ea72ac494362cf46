package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/sirupsen/logrus"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kedge-dev/kedge/internal/base/datadir"
	"github.com/kedge-dev/kedge/internal/base/folderwatch"
)

// archiveSuffixes are the suffixes of image archives. The compression is detected from the content.
var archiveSuffixes = []string{".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst"}

// listSuffix is the suffix of files that list images to pull.
const listSuffix = ".txt"

const (
	// copied is how long the images folder must be unchanged before it is read.
	copied = time.Second
	// progressInterval is how often the progress of an import is logged.
	progressInterval = 10 * time.Second
)

// preloader makes sure that the node has the images of the archives and lists in a folder. The
// images are pinned as long as their archive or list exists.
type preloader struct {
	cfg         Config
	client      *containerd.Client
	service     cri.ImageServiceClient
	snapshotter string
	log         *logrus.Entry
	// record has the archives that were imported, by path. It is also kept in a file.
	record map[string]imported
	// broken has the archives that could not be imported. They are tried again when they change.
	broken map[string]imported
	// ignored are the files of which users were told that they are not read.
	ignored map[string]bool
}

// imported says which images came from an archive. An archive counts as unchanged while its size
// and time are the same.
type imported struct {
	Size    int64
	ModTime time.Time
	Images  []string
	// IDs are the other names by which the CRI knows them: IDs, and names with a digest.
	IDs []string
}

// named tells whether the images have all names by which the CRI may be asked for them. An older
// kedge gave them no name by ID, or no name with a digest, and left them unmarked.
func (i imported) named() bool {
	return i.IDs != nil && slices.ContainsFunc(slices.Concat(i.Images, i.IDs), func(name string) bool { return strings.Contains(name, "@") })
}

func (i imported) same(other imported) bool {
	return i.Size == other.Size && i.ModTime.Equal(other.ModTime)
}

func (c *Containerd) newPreloader(client *containerd.Client, service cri.ImageServiceClient, snapshotter string) *preloader {
	p := &preloader{cfg: c.cfg, client: client, service: service, snapshotter: snapshotter, log: c.log, broken: map[string]imported{}, ignored: map[string]bool{}}
	p.record = readRecord(p.recordFile())
	return p
}

func (p *preloader) recordFile() string { return filepath.Join(p.cfg.Root, "preloaded.json") }

// follow imports what changes in the folder until ctx is done. It pulls lists in a goroutine,
// because a registry may not answer for a long time.
func (p *preloader) follow(ctx context.Context) error {
	changes := folderwatch.Start(ctx, p.cfg.ImagesDir, copied, p.log)
	for {
		// The first pass finds files that came before the watch began.
		if err := p.tellIgnored(); err != nil {
			p.log.Error(err)
		}
		if err := p.importAll(ctx); err != nil && ctx.Err() == nil {
			p.log.Errorf("cannot preload images: %v", err)
		}
		pulling, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.pullLists(pulling)
		}()
		_, more := <-changes
		stop()
		<-done
		if !more {
			return nil
		}
	}
}

// partPrefix begins the names of what containerd has of a file of an archive, until it has all of it.
//
//upstream:relies-on github.com/containerd/containerd/v2/core/images/archive/importer.go ImportIndex
const partPrefix = "tar-"

// begin imports what is in the folder when containerd starts. Before that it removes what an import has left that a kill of kedge or a loss
// of power has ended in the middle. The files of all archives have the same names, such as index.json: containerd would go on with
// the part of another archive, or fail, and no start would succeed.
func (p *preloader) begin(ctx context.Context) error {
	store := p.client.ContentStore()
	parts, err := store.ListStatuses(ctx)
	if err != nil {
		return fmt.Errorf("list parts of images: %w", err)
	}
	for _, part := range parts {
		if strings.HasPrefix(part.Ref, partPrefix) {
			if err := store.Abort(ctx, part.Ref); err != nil {
				return fmt.Errorf("remove part %s of an image: %w", part.Ref, err)
			}
		}
	}
	return p.importAll(ctx)
}

// importAll imports the pause image and those archives in the folder that are new or changed, or
// whose images are gone. It unpins images whose archive no longer exists. An archive that cannot
// be imported is logged and skipped, except the pause image's.
func (p *preloader) importAll(ctx context.Context) error {
	present, err := p.client.ListImages(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	there := map[string]bool{}
	for _, image := range present {
		there[image.Name()] = true
	}
	archives, err := p.find(archiveSuffixes...)
	if err != nil {
		return err
	}
	kept := map[string]imported{}
	var added []string
	for _, archive := range append([]string{p.cfg.PauseArchive}, archives...) {
		info, err := os.Stat(archive)
		if err == nil {
			now := imported{Size: info.Size(), ModTime: info.ModTime()}
			if old := p.record[archive]; old.same(now) && old.named() && !slices.ContainsFunc(old.Images, func(name string) bool { return !there[name] }) {
				kept[archive] = old
				continue
			}
			if p.broken[archive].same(now) {
				continue
			}
			if now.Images, now.IDs, err = p.importFile(ctx, archive); err == nil {
				kept[archive] = now
				delete(p.broken, archive)
				added = append(added, now.Images...)
				p.log.Infof("preloaded %s from %s", strings.Join(now.Images, ", "), archive)
				continue
			}
			p.broken[archive] = now
		}
		if ctx.Err() != nil || archive == p.cfg.PauseArchive {
			return fmt.Errorf("preload images of %s: %w", archive, err)
		}
		p.fail(fmt.Sprintf("cannot preload images of %s (kedge tries again when the file changes): %v", archive, err))
	}
	if _, ok := slices.BinarySearch(kept[p.cfg.PauseArchive].Images, p.cfg.PauseImage); !ok {
		return fmt.Errorf("preload images of %s: the archive has %v, not %s", p.cfg.PauseArchive, kept[p.cfg.PauseArchive].Images, p.cfg.PauseImage)
	}
	p.record = kept
	if err := writeRecord(p.recordFile(), kept); err != nil {
		return err
	}
	if err := p.unpinOthers(ctx); err != nil {
		return err
	}
	// The CRI learns of images by events, so it may know them a moment later.
	for _, name := range added {
		err := waitImage(ctx, p.service, name)
		if ctx.Err() != nil || err != nil && name == p.cfg.PauseImage {
			return err
		}
		if err != nil {
			p.log.Errorf("preload images: %v", err)
		}
	}
	return nil
}

// fail logs a message about a user's file and tells it to users by an Event.
func (p *preloader) fail(message string) {
	p.log.Error(message)
	p.cfg.Warn(message)
}

// tellIgnored tells users once of each file in the folder that is neither an archive nor a list.
// Files whose names begin with a dot are those of programs that copy.
func (p *preloader) tellIgnored() error {
	all, err := p.find("")
	if err != nil {
		return err
	}
	known := append([]string{listSuffix}, archiveSuffixes...)
	ignored := map[string]bool{}
	for _, file := range all {
		info, err := os.Stat(file)
		if err != nil || info.IsDir() || strings.HasPrefix(filepath.Base(file), ".") ||
			slices.ContainsFunc(known, func(suffix string) bool { return strings.HasSuffix(file, suffix) }) {
			continue
		}
		if ignored[file] = true; !p.ignored[file] {
			message := fmt.Sprintf("%s is not read: the names of image archives end in %s, and those of lists of images in %s. "+
				"Compress the archive with gzip or zstd, or not at all", file, strings.Join(archiveSuffixes, ", "), listSuffix)
			p.log.Warn(message)
			p.cfg.Warn(message)
		}
	}
	p.ignored = ignored
	return nil
}

// find returns the files in the folder whose names end in one of the suffixes.
func (p *preloader) find(suffixes ...string) ([]string, error) {
	entries, err := os.ReadDir(p.cfg.ImagesDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list images to preload: %w", err)
	}
	var files []string
	for _, entry := range entries {
		if slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(entry.Name(), s) }) {
			files = append(files, filepath.Join(p.cfg.ImagesDir, entry.Name()))
		}
	}
	return files, nil
}

// importFile imports an archive and logs the progress if that takes long.
func (p *preloader) importFile(ctx context.Context, archive string) (names, ids []string, err error) {
	file, err := datadir.OpenRegular(archive)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	watched, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reportProgress(watched, file, p.log)
	}()
	names, ids, err = importStream(ctx, p.client, file, p.snapshotter, labels(preloadedLabel))
	stop()
	<-done
	return names, ids, err
}

// reportProgress logs how much of a file was read, until ctx is done. After the reading ends,
// the rest of the time is unpacking.
func reportProgress(ctx context.Context, file *os.File, log *logrus.Entry) {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		info, err := file.Stat()
		// The file's own offset tells how far its reader is.
		at, seekErr := file.Seek(0, 1)
		if err != nil || seekErr != nil || info.Size() == 0 {
			continue
		}
		if at < info.Size() {
			log.Infof("preloading %s: %d %% of %d MB read", file.Name(), at*100/info.Size(), info.Size()>>20)
		} else {
			log.Infof("preloading %s: unpacking", file.Name())
		}
	}
}

// unpinOthers unpins the images that were preloaded from files which no longer exist. After that
// the kubelet's garbage collection may remove them.
func (p *preloader) unpinOthers(ctx context.Context) error {
	wanted := map[string]bool{}
	for _, i := range p.record {
		for _, name := range slices.Concat(i.Images, i.IDs) {
			wanted[name] = true
		}
	}
	listed, err := p.listed(ctx)
	if err != nil {
		return err
	}
	for _, name := range listed {
		wanted[name] = true
	}
	store := p.client.ImageService()
	preloaded, err := store.List(ctx, fmt.Sprintf("labels.%q", preloadedLabel))
	if err != nil {
		return fmt.Errorf("list preloaded images: %w", err)
	}
	for _, image := range preloaded {
		if wanted[image.Name] {
			continue
		}
		unpinned := images.Image{Name: image.Name, Labels: map[string]string{managedLabel: "managed"}}
		if _, err := store.Update(ctx, unpinned, "labels"); err != nil {
			return fmt.Errorf("unpin %s: %w", image.Name, err)
		}
		if !strings.HasPrefix(image.Name, "sha256:") && !strings.Contains(image.Name, "@") {
			p.log.Infof("%s is no longer pinned: the archive or list that it was preloaded from is gone", image.Name)
		}
	}
	return nil
}

func waitImage(ctx context.Context, service cri.ImageServiceClient, name string) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		response, err := service.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
		if err != nil {
			return false, fmt.Errorf("ask containerd for image %s: %w", name, err)
		}
		return response.Image != nil, fmt.Errorf("image %s was imported, but the CRI does not find it", name)
	})
}

// readRecord returns the recorded archives. If the record is missing or damaged it returns nil,
// and all archives are imported again.
func readRecord(file string) map[string]imported {
	record := map[string]imported{}
	if data, err := os.ReadFile(file); err != nil || json.Unmarshal(data, &record) != nil {
		return nil
	}
	return record
}

func writeRecord(file string, record map[string]imported) error {
	data, err := json.Marshal(record)
	if err == nil {
		err = datadir.WriteFile(file, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record preloaded images: %w", err)
	}
	return nil
}
