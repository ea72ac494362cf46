package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// filling is a number of ConfigMaps and Secrets, in namespaces of perNamespace.
type filling struct {
	cluster *livedCluster
	prefix  string
	// from and to are the numbers of the first object, and of the one behind the last.
	from, to int
	// of returns what the object of a number is.
	of func(n int) objectKind
}

// objectKind says whether an object is a Secret or a ConfigMap, and how many KiB its data have.
type objectKind struct {
	secret   bool
	kibibyte int
}

func ofSize(secret bool, kibibyte int) func(int) objectKind {
	return func(int) objectKind { return objectKind{secret, kibibyte} }
}

// mixedObject returns Secrets and ConfigMaps in turns, of 1 to 64 KiB.
func mixedObject(n int) objectKind { return objectKind{n%2 == 0, 1 << (n / 2 % 7)} }

func (f *filling) namespace(n int) string { return fmt.Sprint(f.prefix, "-", n/perNamespace) }

// fill creates the objects.
func (f *filling) fill(ctx context.Context) error {
	for n := f.from; n < f.to; n += perNamespace - n%perNamespace {
		if err := f.cluster.makeNamespace(ctx, f.namespace(n)); err != nil {
			return err
		}
	}
	_, err := load(createWorkers, func(n int) bool { return f.from+n < f.to }, func(n int) error {
		n += f.from
		kind := f.of(n)
		meta := metav1.ObjectMeta{Namespace: f.namespace(n), Name: fmt.Sprint("object-", n), Labels: map[string]string{"app.kubernetes.io/part-of": f.prefix}}
		text := randomText(n, kind.kibibyte<<10)
		if kind.secret {
			_, err := f.cluster.client.CoreV1().Secrets(meta.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"value": text}}, metav1.CreateOptions{})
			return err
		}
		_, err := f.cluster.client.CoreV1().ConfigMaps(meta.Namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"value": string(text)}}, metav1.CreateOptions{})
		return err
	})
	return err
}

// remove deletes all namespaces of this prefix, with what is in them.
func (f *filling) remove(ctx context.Context) error {
	var names []string
	for n := 0; n < f.to; n += perNamespace {
		names = append(names, f.namespace(n))
	}
	return f.cluster.removeNamespaces(ctx, names...)
}

// randomText returns letters, which are the same at each call for a number. No two objects share text,
// and it compresses as badly as keys and certificates do.
func randomText(number, length int) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	source := rand.New(rand.NewPCG(uint64(number), uint64(length)))
	text := make([]byte, length)
	for i := range text {
		text[i] = letters[source.IntN(len(letters))]
	}
	return text
}

// makeNamespace creates a namespace if there is none, and waits until pods can be created in it.
func (c *livedCluster) makeNamespace(ctx context.Context, name string) error {
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for {
		_, err := c.client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if err == nil {
			return nil
		}
		if ended := pause(ctx); ended != nil {
			return fmt.Errorf("wait for the service account of %s: %w: %w", name, ended, err)
		}
	}
}

// removeNamespaces deletes namespaces, and waits until they are gone.
func (c *livedCluster) removeNamespaces(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := c.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, "namespaces to go", func(ctx context.Context) error {
		for len(names) > 0 {
			if _, err := c.client.CoreV1().Namespaces().Get(ctx, names[0], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%d namespaces are left, of them %s: %w", len(names), names[0], err)
			}
			names = names[1:]
		}
		return nil
	})
}

// deleteEvents deletes all Events. Otherwise they would stay for an hour.
func (c *livedCluster) deleteEvents(ctx context.Context) error {
	namespaces, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, namespace := range namespaces.Items {
		if err := c.client.CoreV1().Events(namespace.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return fmt.Errorf("delete events: %w", err)
		}
	}
	return nil
}
