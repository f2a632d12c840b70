package pulsartxnspark.store;

@OnCluster
class RedisSegmentStoreOnClusterTest extends RedisSegmentStoreTest {}
